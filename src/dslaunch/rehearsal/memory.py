"""The memory that a rehearsal has measured, against the estimate for the real run. Pure.

The estimate is that of `dslaunch estimate` (`deepspeed/memory.py`): model states and gradients.
Activations are known only by what was measured. Where the estimate does not know a way of training,
there is no finding: FSDP, tensor and pipeline parallelism, and optimizers other than Adam's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

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
from dslaunch.protocol.rehearsal import Engine, GivenConfig, OptimizerBuilt, Started, Step, Wrapped
from dslaunch.rehearsal.findings import Finding, FindingKind, finding
from dslaunch.rehearsal.ranks import RankRecords
from dslaunch.run.rehearsal import Rehearsed

MOSTLY = 4
"""How many times the model states a rank uses from which on activations are mostly it."""
HALF = 0.5
"""Share of the estimated model states that a rank uses below which the estimate is wrong."""
WORTH_TELLING = 1 << 30
"""Bytes of a GPU from which on the estimate is compared: CUDA itself uses some hundred MB."""
FULL = 0.95
"""Share of the memory of a node from which on it is short."""
HALF_TYPES = frozenset({"float16", "bfloat16"})
Ranks = tuple[RankRecords, ...]


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
        need = model_states(rank, machines(rehearsed.full_ranks, rehearsed.full_nodes))
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
        step, need = rank.last(Step), model_states(rank, here)
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


def model_states(rank: RankRecords, of: Machines) -> int | None:
    """Return the estimated bytes of GPU memory for the model states of a rank, at their peak; None:
    the estimate does not know this way of training."""
    built, engine, optimizer = _sizes(rank), rank.last(Engine), rank.last(OptimizerBuilt)
    if built is None or "cuda" not in built.devices:
        return None
    if not _is_adam(engine, optimizer):
        return None
    if engine is None:
        return None if rank.sharded else _of_plain(built)
    if engine.pipeline or engine.model_parallel:
        return None
    return _of_engine(rank, built, engine, of)


def _is_adam(engine: Engine | None, optimizer: OptimizerBuilt | None) -> bool:
    """Return whether a rank trains with an optimizer of Adam's family; DeepSpeed's comes first."""
    trained_by = engine or optimizer
    return trained_by is not None and "adam" in trained_by.optimizer.lower()


def _of_plain(built: Wrapped | OptimizerBuilt) -> int:
    """Return the bytes of weights, gradients and both moments, in the type of the weights."""
    width = _width(built)
    return width * (built.parameters + 3 * built.trainable)


def _of_engine(
    rank: RankRecords, built: Wrapped | OptimizerBuilt, engine: Engine, of: Machines
) -> int:
    config = _config(rank)
    zero = config.get("zero_optimization")
    zero = zero if isinstance(zero, dict) else {}
    strategy = Strategy(
        stage=engine.stage,
        optimizer=_device(zero.get("offload_optimizer")),
        params=_device(zero.get("offload_param")),
    )
    half = any(_enabled(config.get(name)) for name in ("fp16", "bf16", "bfloat16"))
    settings = MemorySettings(width=2 if half else 4)
    largest = built.largest if isinstance(built, Wrapped) else 0
    model = Model(params=built.trainable, largest_layer=min(largest, built.trainable))
    frozen = settings.width * (built.parameters - built.trainable)
    if engine.stage == 3:
        frozen = 0 if strategy.params != "gpu" else frozen // of.gpus
    return frozen + peak(state_parts(model, of, strategy, settings), "gpu")


def _sizes(rank: RankRecords) -> Wrapped | OptimizerBuilt | None:
    return rank.last(Wrapped) or rank.last(OptimizerBuilt)


def machines(ranks: int, nodes: int) -> Machines:
    """Return the machines of a run for the estimate, which knows equal nodes only."""
    return Machines(nodes=nodes, gpus_per_node=max(ranks // nodes, 1))


def _width(built: Wrapped | OptimizerBuilt) -> int:
    """Return the bytes of most parameters."""
    usual = max(built.types, key=lambda kind: built.types[kind], default="float32")
    return 2 if usual in HALF_TYPES else 4


def _config(rank: RankRecords) -> dict[str, Any]:
    given = rank.last(GivenConfig)
    try:
        parsed: Any = json.loads(given.text) if given is not None else {}
    except ValueError:  # HJSON
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _enabled(section: object) -> bool:
    return isinstance(section, dict) and section.get("enabled") is True


def _device(section: object) -> Device:
    device = section.get("device") if isinstance(section, dict) else None
    if device == "cpu":
        return "cpu"
    return "nvme" if device == "nvme" else "gpu"
