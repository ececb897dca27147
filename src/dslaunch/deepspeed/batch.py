"""Compute the batch sizes as DeepSpeed does from its three batch keys. Pure.

`train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel
size`. Missing sizes are computed from the others; the rules and the texts of errors are those of
DeepSpeed 0.16.9 to 0.19.8 (runtime/config.py, `_set_batch_related_parameters` and
`_batch_assertion`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

TRAIN = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"
MOST_STEPS = 64
"""Maximum number of accumulation steps to try."""
MISSING = "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided"


class Parallelism(Struct, frozen=True):
    """The parallelism of the ranks of a job."""

    world: int
    """All ranks."""
    tensor: int = 1
    """Tensor-parallel ranks, if the model has an `mpu` as Megatron's models do."""
    pipeline: int = 1
    """Number of stages of a PipelineModule."""
    sequence: int = 1
    """Ranks per sequence (Ulysses; `sequence_parallel_size` in the config)."""
    autotp: int = 1
    """`tensor_parallel.autotp_size`. DeepSpeed counts these ranks as data-parallel ranks, because
    it reads the config first (0.19.8, __init__.py)."""

    @property
    def data(self) -> float:
        """Return the data-parallel size by which DeepSpeed divides. As in DeepSpeed, a fraction if
        the sequence ranks do not divide the world size (0.19.8, runtime/config.py); 0 if tensor and
        pipeline ranks do not divide it."""
        model = self.tensor * self.pipeline
        size = self.world / self.sequence if self.sequence > 1 else self.world // model
        return int(size) if float(size).is_integer() else size


class BatchSizes(Struct, frozen=True):
    """The three batch sizes."""

    train: float
    micro: float
    steps: float


class BatchError(Struct, frozen=True):
    """The error at which DeepSpeed stops."""

    message: str
    fix: str
    missing: bool = False
    """Whether neither the train nor the micro batch size is set, which a script may still do."""


def given(config: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return the three batch keys of a config; None: not set."""
    return config.get(TRAIN), config.get(MICRO), config.get(STEPS)


def resolve(
    train: float | None, micro: float | None, steps: float | None, data: float
) -> BatchSizes | BatchError:
    """Compute the missing sizes and check all, as DeepSpeed does.

    `data` is the data-parallel size. If it is below 1, DeepSpeed fails with a division by zero.
    """
    if train is None and micro is None:
        return BatchError(MISSING, f"set {MICRO} (samples per GPU and step)", missing=True)
    try:
        batch = _filled(train, micro, steps, data)
    except ZeroDivisionError:
        return BatchError("integer division or modulo by zero", "set all batch sizes to 1 or more")
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
        return f"set {TRAIN} to {data:g} or more: {batch.train:g} is too small for {data:g} GPUs"
    return "set all three to 1 or more"


def _unequal(batch: BatchSizes, data: float) -> str:
    whole = batch.micro * batch.steps * data
    if not float(whole).is_integer():
        return f"change the number of ranks: {data:g} data-parallel ranks are not an integer"
    return f"set {TRAIN} to {whole:g}, or remove one of the three; DeepSpeed computes it"


def valid_changes(sizes: tuple[Any, Any, Any], data: int) -> tuple[dict[str, int], ...]:
    """Return alternative changes that make the sizes valid for `data` ranks: keys with new values.
    Empty if the given sizes allow none."""
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
    """Yield micro-batches and steps whose product is the share of one rank."""
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
    """Return whether a value is a valid size."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def parallelism(config: Any, world: int, tensor: int = 1, pipeline: int = 1) -> Parallelism:
    """Return the parallelism of `world` ranks. Tensor and pipeline parallelism come from the
    script; sequence and automatic tensor parallelism come from the config."""
    settings = config if isinstance(config, dict) else {}
    section = settings.get("tensor_parallel")
    autotp = section.get("autotp_size") if isinstance(section, dict) else None
    return Parallelism(
        world, tensor, pipeline, _size(settings.get("sequence_parallel_size")), _size(autotp)
    )


def _size(value: Any) -> int:
    """Return a size; 1 if it is not set or invalid."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and value > 0 else 1
