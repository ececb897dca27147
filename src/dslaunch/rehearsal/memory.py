"""The memory that a rehearsal has measured, against the estimate for the real run. Pure.

The estimate is that of `dslaunch estimate` (`deepspeed/memory.py`): model states and gradients.
What the optimizer keeps of the parameters is measured after its first step, so that any optimizer
is known; before that step only those of OPTIMIZERS are. Activations are known only by what was
measured. Where the estimate does not know a way of training, there is no finding: tensor and
pipeline parallelism, and FSDP that divides the parameters among a part of the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from dslaunch.cluster.nodeset import ranks_text
from dslaunch.deepspeed.memory import (
    Device,
    Machines,
    MemorySettings,
    Model,
    Strategy,
    peak,
    state_parts,
)
from dslaunch.plural import byte_count
from dslaunch.protocol.rehearsal import Engine, OptimizerBuilt, Started, Step, Wrapped
from dslaunch.rehearsal.findings import Finding, FindingKind, finding
from dslaunch.rehearsal.ranks import RankRecords, Ranks
from dslaunch.run.rehearsal import Rehearsed

MOSTLY = 4
"""How many times the model states a rank uses from which on activations are mostly it."""
HALF = 0.5
"""Share of the estimated model states that a rank uses below which the estimate is wrong."""
WORTH_TELLING = 1 << 30
"""Bytes of a GPU from which on the estimate is compared: CUDA itself uses some hundred MB."""
FULL = 0.95
"""Share of the memory of a node or a GPU from which on it is short."""
PADDING = 0.05
"""Share of the parameters that FSDP adds to divide them equally, at most."""
HALF_TYPES = frozenset({"float16", "bfloat16"})


class Kept(Struct, frozen=True):
    """What an optimizer keeps of each parameter."""

    moments: int = 0
    """Values of the parameter's type."""
    bytes: int = 0


OPTIMIZERS: Mapping[str, Kept] = {
    "adam.*8bit": Kept(bytes=2),
    "lion.*8bit": Kept(bytes=1),
    "adafactor|sgd": Kept(),  # at least: momentum is seen after the first step only
    "lion|muon": Kept(moments=1),
    "adam|lamb": Kept(moments=2),
}
"""By a pattern of their names in lower case; the first that fits counts. It is needed where a rank
has not made a step."""


def memory(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield what does not fit, and where the estimate differs grossly from what was measured."""
    yield from _too_large(rehearsed, ranks)
    yield from _differs(rehearsed, ranks)
    yield from _nodes(rehearsed, ranks)


def _too_large(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield that the model states of the real run are larger than a GPU. Steps that were made on as
    many ranks have refuted that."""
    made = not rehearsed.is_smaller and all(rank.steps for rank in ranks)
    for rank in ranks:
        built = _sizes(rank)
        need = model_states(
            rank, machines(rehearsed.full_ranks, rehearsed.full_nodes), rehearsed.plan.world_size
        )
        if made or built is None or built.gpu_total is None or need is None:
            continue
        if need > built.gpu_total:
            yield finding(
                FindingKind.GPU_STATES,
                ranks_text([rank.rank]),
                parameters=built.parameters,
                need=byte_count(need),
                ranks=rehearsed.full_ranks,
                total=byte_count(built.gpu_total),
            )
            return


def _differs(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield that a rank has used much more, or much less, than its model states."""
    here = machines(rehearsed.plan.world_size, len(rehearsed.plan.nodes))
    for rank in ranks:
        step, need = rank.last(Step), model_states(rank, here, here.gpus)
        used = step.gpu_memory if step is not None else None
        if used is None or need is None or max(used, need) < WORTH_TELLING:
            continue
        kind = None
        if used < HALF * need:
            kind = FindingKind.MOSTLY_STATES
        elif used > MOSTLY * need:
            kind = FindingKind.MOSTLY_ACTIVATIONS
        if kind is not None:
            where = ranks_text([rank.rank])
            yield finding(kind, where, used=byte_count(used), need=byte_count(need))
            return


def _nodes(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield the nodes whose memory is almost full."""
    for node in rehearsed.plan.nodes:
        mine = [rank for rank in ranks if rank.host == node.host]
        starts = [started for rank in mine for started in rank.every(Started)]
        total = starts[0].node_memory if starts else None
        used = sum(step.memory for rank in mine for step in rank.every(Step)[-1:])
        if total and used > FULL * total:
            yield finding(
                FindingKind.NODE_MEMORY,
                node.host,
                ranks=len(mine),
                used=byte_count(used),
                total=byte_count(total),
            )


def model_states(rank: RankRecords, of: Machines, ranks: int) -> int | None:
    """Return the estimated bytes of GPU memory for the model states of a rank, at their peak; None:
    the estimate does not know this way of training. `ranks`: as many have recorded this."""
    built, engine = _sizes(rank), rank.last(Engine)
    if built is None or not _is_on_gpu(built, rank.last(OptimizerBuilt)):
        return None
    if engine is None:
        return _of_sharded(rank, built, of, ranks) if rank.sharded else _of_plain(rank, built)
    if engine.pipeline or engine.model_parallel:
        return None
    return _of_engine(rank, built, engine, of)


def _is_on_gpu(*sizes: Wrapped | OptimizerBuilt | None) -> bool:
    """Return whether parameters are on a GPU. FSDP moves them there when it wraps them."""
    return any("cuda" in each.devices for each in sizes if each is not None)


def _of_plain(rank: RankRecords, built: Wrapped | OptimizerBuilt) -> int | None:
    """Return the bytes of weights, gradients and what the optimizer keeps."""
    width = _width(built)
    kept = _kept_bytes(rank, parameters=built.trainable, width=width)
    return None if kept is None else width * (built.parameters + built.trainable) + int(kept)


def _of_sharded(
    rank: RankRecords, built: Wrapped | OptimizerBuilt, of: Machines, ranks: int
) -> int | None:
    """Return the bytes of FSDP: the rank's part of weights, gradients and what the optimizer keeps,
    and the modules that are gathered: one with its gradients, and the next one.

    (torch 2.13: `torch.distributed.fsdp`, backward prefetch)
    """
    optimizer = rank.last(OptimizerBuilt)
    if optimizer is None or not optimizer.own_bytes:
        return None
    width = _width(built)
    part = optimizer.own_bytes * ranks
    if abs(part - width * built.trainable) > PADDING * part:
        return None  # each part of the ranks has all parameters, or some are not trained
    kept = _kept_bytes(rank, parameters=optimizer.own_bytes // width, width=width)
    if kept is None:
        return None
    gathered = 3 * width * _largest_module(rank)
    return (2 * part + int(kept) * ranks) // of.gpus + gathered


def _largest_module(rank: RankRecords) -> int:
    """Return the parameters of the largest module that is gathered by itself: of the ones that are
    wrapped, or what the whole model has besides them."""
    wrapped = sorted(each.parameters for each in rank.every(Wrapped))
    *modules, whole = wrapped or [0]
    return max([*modules, whole - sum(modules), 0])


def _kept_bytes(rank: RankRecords, *, parameters: int, width: int) -> float | None:
    """Return the bytes that the optimizer of a rank keeps on its GPU, of so many parameters; None:
    unknown."""
    measured = [step.states for step in rank.every(Step) if step.states is not None]
    if measured:
        return measured[0].get("cuda", 0)
    trained_by = rank.last(Engine) or rank.last(OptimizerBuilt)
    name = trained_by.optimizer.lower() if trained_by is not None else ""
    known = next((kept for pattern, kept in OPTIMIZERS.items() if re.search(pattern, name)), None)
    if known is None:
        return None
    return parameters * (known.bytes + known.moments * width)


def _of_engine(
    rank: RankRecords, built: Wrapped | OptimizerBuilt, engine: Engine, of: Machines
) -> int | None:
    config = rank.config or {}
    zero = config.get("zero_optimization")
    zero = zero if isinstance(zero, dict) else {}
    strategy = Strategy(
        stage=engine.stage,
        optimizer=_device(zero.get("offload_optimizer")),
        params=_device(zero.get("offload_param")),
    )
    # DeepSpeed's optimizers work in fp32, on the rank's part from stage 1 on
    parts = engine.data_parallel if engine.stage else 1
    own = built.trainable / max(parts, 1)
    kept = _kept_bytes(rank, parameters=int(own), width=4)
    if kept is None or not own:
        return None
    half = any(_enabled(config.get(name)) for name in ("fp16", "bf16", "bfloat16"))
    settings = MemorySettings(width=2 if half else 4, moments=kept / own)
    largest = built.largest if isinstance(built, Wrapped) else 0
    model = Model(params=built.trainable, largest_layer=min(largest, built.trainable))
    frozen = settings.width * (built.parameters - built.trainable)
    if engine.stage == 3:
        frozen = 0 if strategy.params != "gpu" else frozen // of.gpus
    return frozen + peak(state_parts(model, of, strategy, settings), "gpu")


def _sizes(rank: RankRecords) -> Wrapped | OptimizerBuilt | None:
    """Return the sizes of the whole model: each of its layers may have been wrapped, too."""
    wrapped = rank.every(Wrapped)
    return max(wrapped, key=_parameters) if wrapped else rank.last(OptimizerBuilt)


def _parameters(built: Wrapped) -> int:
    return built.parameters


def machines(ranks: int, nodes: int) -> Machines:
    """Return the machines of a run for the estimate, which knows equal nodes only."""
    return Machines(nodes=nodes, gpus_per_node=max(ranks // nodes, 1))


def _width(built: Wrapped | OptimizerBuilt) -> int:
    """Return the bytes of most parameters."""
    usual = max(built.types, key=lambda kind: built.types[kind], default="float32")
    return 2 if usual in HALF_TYPES else 4


def _enabled(section: object) -> bool:
    return isinstance(section, dict) and section.get("enabled") is True


def _device(section: object) -> Device:
    device = section.get("device") if isinstance(section, dict) else None
    if device == "cpu":
        return "cpu"
    return "nvme" if device == "nvme" else "gpu"
