"""Arithmetic of batch sizes: what DeepSpeed makes of its three batch keys. Pure.

`train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel
size`. What is not given follows from the rest; the rules and the words of the errors are those of
DeepSpeed 0.16.9 to 0.19.8 (runtime/config.py, `_set_batch_related_parameters` and
`_batch_assertion`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TRAIN = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"
MOST_STEPS = 64
"""Of accumulation, among which those that fit are looked for."""
MISSING = "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided"


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How the ranks of a job divide the work."""

    world: int
    """All ranks."""
    tensor: int = 1
    """Ranks that hold one layer together, when the model brings an `mpu` as Megatron's do."""
    pipeline: int = 1
    """Stages of a PipelineModule."""
    sequence: int = 1
    """Ranks that share one sequence (Ulysses; `sequence_parallel_size` in the config)."""
    autotp: int = 1
    """`tensor_parallel.autotp_size`. DeepSpeed counts these ranks as data-parallel all the same,
    as it reads the config before it knows of them (0.19.8, __init__.py)."""

    @property
    def data(self) -> float:
        """The size that DeepSpeed divides by. A fraction where sequence ranks do not divide the
        world, since it divides so (0.19.8, runtime/config.py); 0 where tensor and pipeline ranks
        do not fit."""
        model = self.tensor * self.pipeline
        size = self.world / self.sequence if self.sequence > 1 else self.world // model
        return int(size) if float(size).is_integer() else size


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """The three sizes, known."""

    train: float
    micro: float
    steps: float


@dataclass(frozen=True, slots=True)
class BatchError:
    """What DeepSpeed says when it stops."""

    message: str
    fix: str


def given(config: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """The three keys of a config; None where one is not there."""
    return config.get(TRAIN), config.get(MICRO), config.get(STEPS)


def resolve(
    train: float | None, micro: float | None, steps: float | None, data: float
) -> BatchSizes | BatchError:
    """Fill in what is not given, and check, as DeepSpeed does.

    `data` is the data-parallel size. Where it is below 1, DeepSpeed fails with a division by zero.
    """
    if train is None and micro is None:
        return BatchError(MISSING, f"set {MICRO}, the samples per GPU and step")
    try:
        batch = _filled(train, micro, steps, data)
    except ZeroDivisionError:
        return BatchError("integer division or modulo by zero", "all batch sizes are 1 or more")
    return _checked(batch, data)


def _filled(train: Any, micro: Any, steps: Any, data: float) -> BatchSizes:
    if train is not None and micro is not None:
        return BatchSizes(train, micro, train // micro // data if steps is None else steps)
    if train is not None:
        if steps is None:
            return BatchSizes(train, train // data, 1)
        return BatchSizes(train, train // data // steps, steps)
    steps = 1 if steps is None else steps
    return BatchSizes(micro * steps * data, micro, steps)


def _checked(batch: BatchSizes, data: float) -> BatchSizes | BatchError:
    for name, value in (
        ("Train batch size", batch.train),
        ("Micro batch size per gpu", batch.micro),
        ("Gradient accumulation steps", batch.steps),
    ):
        if not value > 0:
            return BatchError(f"{name}: {value} has to be greater than 0", _too_small(batch, data))
    if batch.train != batch.micro * batch.steps * data:
        return BatchError(
            "Check batch related parameters. train_batch_size is not equal to "
            "micro_batch_per_gpu * gradient_acc_step * world_size "
            f"{batch.train} != {batch.micro} * {batch.steps} * {data}",
            _unequal(batch, data),
        )
    return batch


def _too_small(batch: BatchSizes, data: float) -> str:
    if 0 < batch.train < data:
        return f"{TRAIN} {batch.train:g} cannot be divided among {data:g} GPUs: {data:g} or more"
    return "all three are 1 or more"


def _unequal(batch: BatchSizes, data: float) -> str:
    whole = batch.micro * batch.steps * data
    if not float(whole).is_integer():
        return f"as many ranks as can be divided; {data:g} data-parallel ones are no whole number"
    return f"{TRAIN} {whole:g}, or leave one of the three out and DeepSpeed works it out"


def ways_out(sizes: tuple[Any, Any, Any], data: int) -> tuple[dict[str, int], ...]:
    """Changes that make three sizes fit `data` ranks, each by itself: the keys to change, and to
    what. None where nothing sensible is given."""
    train, micro, steps = (size if is_size(size) else None for size in sizes)
    if data < 1:
        return ()
    ways: list[dict[str, int]] = []
    if micro is not None:
        ways.append({TRAIN: micro * (steps or 1) * data})
    if train is not None and train % data == 0:
        ways += _divided(train // data, micro, steps)
    if train is not None and micro is None:
        unit = data * (steps or 1)
        nearest = {max(1, train // unit) * unit, (train // unit + 1) * unit}
        ways += [{TRAIN: total} for total in sorted(nearest) if total != train]
    return tuple(ways)


def _divided(share: int, micro: int | None, steps: int | None) -> Iterator[dict[str, int]]:
    """How one rank's share of the total can be made of micro-batches and steps."""
    if micro is not None and share % micro == 0:
        yield {STEPS: share // micro}
    if steps is not None and share % steps == 0:
        yield {MICRO: share // steps}
    wanted = micro or 1
    fitting = [each for each in range(1, MOST_STEPS + 1) if share % each == 0]
    if fitting:
        nearest = min(fitting, key=lambda each: abs(share // each - wanted))
        yield {MICRO: share // nearest, STEPS: nearest}


def is_size(value: object) -> bool:
    """Whether a value can be a size."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def parallelism(config: Any, world: int, tensor: int = 1, pipeline: int = 1) -> Parallelism:
    """How the ranks of a job divide the work: `world` of them, tensor and pipeline as the script
    has it, sequence and automatic tensor parallelism as the config says."""
    settings = config if isinstance(config, dict) else {}
    section = settings.get("tensor_parallel")
    autotp = section.get("autotp_size") if isinstance(section, dict) else None
    return Parallelism(
        world, tensor, pipeline, _size(settings.get("sequence_parallel_size")), _size(autotp)
    )


def _size(value: Any) -> int:
    """A size, 1 where it says nothing."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and value > 0 else 1
