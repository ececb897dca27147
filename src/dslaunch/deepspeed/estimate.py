"""Which ways to train fit a cluster, in the order fastest first, and which one to take. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dslaunch.deepspeed.activations import Activations, Batch, activations
from dslaunch.deepspeed.communication import Bandwidth, Collective, collectives, seconds
from dslaunch.deepspeed.memory import (
    FASTEST_FIRST,
    GIB,
    Machines,
    Need,
    Part,
    Settings,
    Strategy,
    bucket_parts,
    corrected,
    deepspeed_estimate,
    faults,
    peak,
    state_parts,
)
from dslaunch.deepspeed.model_size import Sized

HEADROOM = 0.1
"""The part of the memory left for CUDA, NCCL, fragmentation and everything else."""
MOST_NODES = 4096


@dataclass(frozen=True, slots=True)
class Limits:
    """What there is, in bytes; None: not said."""

    gpu: int | None = None
    cpu: int | None = None
    nvme: int | None = None
    """None: no NVMe, so nothing that needs it is offered."""
    headroom: float = HEADROOM


@dataclass(frozen=True, slots=True)
class Question:
    """Everything that an estimate depends on."""

    sized: Sized
    machines: Machines
    settings: Settings = field(default_factory=Settings)
    limits: Limits = field(default_factory=Limits)
    batch: Batch = field(default_factory=Batch)
    accumulation: int = 1
    bandwidth: Bandwidth = field(default_factory=Bandwidth)


@dataclass(frozen=True, slots=True)
class Row:
    """One way to train."""

    strategy: Strategy
    theirs: Need | None
    """DeepSpeed's own estimate of the model states."""
    states: Need
    """The model states, with the faults of that mended."""
    faults: tuple[str, ...]
    parts: tuple[Part, ...]
    """What states and buckets consist of."""
    buckets: int
    """Bytes per GPU of reduce buckets and of what stage 3 gathers; not all at the peak's moment."""
    activations: Activations | None
    gpu: int
    """Per GPU: states, buckets and activations at their peak, without checkpointing."""
    gpu_checkpointed: int
    cpu: int
    nvme: int
    moved: tuple[Collective, ...]
    seconds: float | None
    fits: str
    """`yes`, `checkpointing` if only with activation checkpointing, `no`, or empty: not known."""


def estimate(question: Question) -> tuple[Row, ...]:
    """All ways to train, fastest first."""
    return tuple(_row(question, strategy) for strategy in FASTEST_FIRST)


def by_nodes(question: Question, counts: Sequence[int]) -> dict[int, tuple[Row, ...]]:
    """The same on other numbers of such nodes."""
    gpus = question.machines.gpus_per_node
    return {n: estimate(replace(question, machines=Machines(n, gpus))) for n in counts}


def _row(q: Question, strategy: Strategy) -> Row:
    model, machines, settings = q.sized.model, q.machines, q.settings
    states = state_parts(model, machines, strategy, settings)
    buckets = bucket_parts(model, strategy, settings)
    parts = (*states, *buckets)
    acts = activations(q.sized.shape, q.batch, settings.width) if q.sized.shape else None
    # activations are largest when the backward pass begins
    full, checkpointed = (
        peak((*parts, Part("activations", "gpu", size, "backward")), "gpu")
        for size in ((acts.full, acts.checkpointed) if acts else (0, 0))
    )
    cpu, nvme = peak(parts, "cpu"), peak(parts, "nvme")
    moved = collectives(model, machines, strategy, settings, q.accumulation)
    return Row(
        strategy=strategy,
        theirs=deepspeed_estimate(model, machines, strategy, settings.factor),
        states=corrected(model, machines, strategy, settings),
        faults=faults(model, machines, strategy, settings),
        parts=parts,
        buckets=peak(buckets, "gpu"),
        activations=acts,
        gpu=full,
        gpu_checkpointed=checkpointed,
        cpu=cpu,
        nvme=nvme,
        moved=moved,
        seconds=seconds(moved, machines, q.bandwidth),
        fits=_fits(q.limits, full, checkpointed, cpu, nvme),
    )


def _fits(limits: Limits, full: int, checkpointed: int, cpu: int, nvme: int) -> str:
    if limits.gpu is None and limits.cpu is None:
        return ""
    share = 1 - limits.headroom
    host = limits.cpu is None or cpu <= share * limits.cpu
    disk = nvme == 0 or (limits.nvme is not None and nvme <= share * limits.nvme)
    if not host or not disk:
        return "no"
    if limits.gpu is None or full <= share * limits.gpu:
        return "yes"
    return "checkpointing" if checkpointed <= share * limits.gpu else "no"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to do, in one line."""

    row: Row | None
    """None: nothing fits, or nobody said what there is."""
    checkpointing: bool
    text: str


def recommend(question: Question, rows: Sequence[Row]) -> Recommendation:
    """The fastest that fits, with the reason; or what would make something fit.

    Among ZeRO-0 to 2 on the GPU, activation checkpointing, which computes a third more, comes
    after all without it.
    """
    if question.limits.gpu is None and question.limits.cpu is None:
        text = "say --gpu-memory and --cpu-memory to learn what fits"
        return Recommendation(None, False, text)
    resident = [row for row in rows if row.strategy.stage < 3 and row.strategy.optimizer == "gpu"]
    order = [*(r for r in resident if r.fits == "yes"), *(r for r in rows if r.fits != "no")]
    if not order:
        return Recommendation(None, False, _what_would_fit(question, rows))
    row = order[0]
    return Recommendation(row, row.fits == "checkpointing", _reason(question, rows, row))


def _reason(question: Question, rows: Sequence[Row], row: Row) -> str:
    with_checkpointing = " with activation checkpointing" if row.fits == "checkpointing" else ""
    need = row.gpu_checkpointed if row.fits == "checkpointing" else row.gpu
    faster = [each for each in rows[: rows.index(row)] if each.fits == "no"]
    why = f"; {_shortage(question.limits, faster[-1])}" if faster else ""
    return (
        f"{row.strategy}{with_checkpointing}: the fastest that fits, "
        f"{need / GIB:.1f} GiB of each GPU and {row.cpu / GIB:.1f} GiB of each node{why}"
    )


def _shortage(limits: Limits, row: Row) -> str:
    share = 1 - limits.headroom
    if limits.gpu is not None and row.gpu_checkpointed > share * limits.gpu:
        return f"{row.strategy} needs {row.gpu_checkpointed / GIB:.1f} GiB of each GPU"
    if limits.cpu is not None and row.cpu > share * limits.cpu:
        return f"{row.strategy} needs {row.cpu / GIB:.1f} GiB of each node"
    return f"{row.strategy} needs {row.nvme / GIB:.1f} GiB of NVMe on each node"


def _what_would_fit(question: Question, rows: Sequence[Row]) -> str:
    """More nodes, if some number of them is enough."""
    nodes = question.machines.nodes * 2
    while nodes <= MOST_NODES:
        more = replace(question, machines=Machines(nodes, question.machines.gpus_per_node))
        fitting = [row for row in estimate(more) if row.fits != "no"]
        if fitting:
            return f"nothing fits; {fitting[0].strategy} would on {nodes} nodes like these"
        nodes *= 2
    least = min(rows, key=lambda row: row.gpu_checkpointed)
    return f"nothing fits, on no number of such nodes; {_shortage(question.limits, least)}"
