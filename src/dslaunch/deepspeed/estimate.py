"""Which ways to train fit a cluster, in the order fastest first, and which one to take. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dslaunch.deepspeed.activations import Activations, MicroBatch, activations
from dslaunch.deepspeed.communication import Bandwidth, Collective, collectives, seconds
from dslaunch.deepspeed.memory import (
    FASTEST_FIRST,
    GIB,
    Machines,
    MemoryNeed,
    MemoryPart,
    MemorySettings,
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
Fits = Literal["yes", "checkpointing", "no", "unknown"]
"""`checkpointing`: only with activation checkpointing; `unknown`: a size was not given."""
GIVEN_BY = {"gpu": "--gpu-memory", "cpu": "--cpu-memory", "nvme": "--nvme"}


@dataclass(frozen=True, slots=True)
class Limits:
    """What there is, in bytes; None: not said."""

    gpu: int | None = None
    cpu: int | None = None
    nvme: int | None = None
    headroom: float = HEADROOM


@dataclass(frozen=True, slots=True)
class EstimateInput:
    """Everything that an estimate depends on."""

    sized: Sized
    machines: Machines
    settings: MemorySettings = field(default_factory=MemorySettings)
    limits: Limits = field(default_factory=Limits)
    batch: MicroBatch = field(default_factory=MicroBatch)
    accumulation: int = 1
    bandwidth: Bandwidth = field(default_factory=Bandwidth)


@dataclass(frozen=True, slots=True)
class Row:
    """One way to train."""

    strategy: Strategy
    theirs: MemoryNeed | None
    """DeepSpeed's own estimate of the model states."""
    states: MemoryNeed
    """The model states, with the faults of that mended."""
    faults: tuple[str, ...]
    parts: tuple[MemoryPart, ...]
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
    fits: Fits
    unknown: tuple[str, ...] = ()
    """What must be given to learn whether it fits: `gpu`, `cpu`, `nvme`."""


def estimate(question: EstimateInput) -> tuple[Row, ...]:
    """All ways to train, fastest first."""
    return tuple(_row(question, strategy) for strategy in FASTEST_FIRST)


def by_nodes(question: EstimateInput, counts: Sequence[int]) -> dict[int, tuple[Row, ...]]:
    """The same on other numbers of such nodes."""
    gpus = question.machines.gpus_per_node
    return {n: estimate(replace(question, machines=Machines(n, gpus))) for n in counts}


def _row(q: EstimateInput, strategy: Strategy) -> Row:
    model, machines, settings = q.sized.model, q.machines, q.settings
    states = state_parts(model, machines, strategy, settings)
    buckets = bucket_parts(model, strategy, settings)
    parts = (*states, *buckets)
    acts = activations(q.sized.shape, q.batch, settings.width) if q.sized.shape else None
    # activations are largest when the backward pass begins
    full, checkpointed = (
        peak((*parts, MemoryPart("activations", "gpu", size, "backward")), "gpu")
        for size in ((acts.full, acts.checkpointed) if acts else (0, 0))
    )
    cpu, nvme = peak(parts, "cpu"), peak(parts, "nvme")
    moved = collectives(model, machines, strategy, settings, q.accumulation)
    fits, unknown = _fits(
        q.limits, strategy, full=full, checkpointed=checkpointed, cpu=cpu, nvme=nvme
    )
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
        fits=fits,
        unknown=unknown,
    )


def _fits(
    limits: Limits, strategy: Strategy, *, full: int, checkpointed: int, cpu: int, nvme: int
) -> tuple[Fits, tuple[str, ...]]:
    """Say whether it fits, and which sizes must be given to know.

    A size that is given and too small decides, whatever else is not given. What a node needs only
    while a model is loaded is no reason to ask for its memory.
    """
    share = 1 - limits.headroom
    offloads = "cpu" in (strategy.optimizer, strategy.params) or nvme > 0
    wanted = {"gpu": (limits.gpu, checkpointed), "cpu": (limits.cpu, cpu)}
    if nvme:
        wanted["nvme"] = (limits.nvme, nvme)
    if any(limit is not None and need > share * limit for limit, need in wanted.values()):
        return "no", ()
    needed = ["gpu", *(["cpu"] if offloads else []), *(["nvme"] if nvme else [])]
    unknown = tuple(name for name in needed if wanted[name][0] is None)
    if unknown or limits.gpu is None:
        return "unknown", unknown
    return ("yes" if full <= share * limits.gpu else "checkpointing"), ()


Outcome = Literal["fits", "does-not-fit", "unknown"]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to do, in one line."""

    row: Row | None
    """None: nothing fits, or nobody said what there is."""
    checkpointing: bool
    text: str
    outcome: Outcome = "fits"
    missing: tuple[str, ...] = ()
    """Unknown: the options that would tell."""
    micro_batch: int | None = None
    """Nothing fits: the largest micro-batch that would."""


def recommend(question: EstimateInput, rows: Sequence[Row]) -> Recommendation:
    """The fastest that fits, with the reason; or what would make something fit.

    Among ZeRO-0 to 2 on the GPU, activation checkpointing, which computes a third more, comes
    after all without it.
    """
    if question.limits.gpu is None and question.limits.cpu is None:
        text = "not known what fits: give --gpu-memory and --cpu-memory"
        both = (GIVEN_BY["gpu"], GIVEN_BY["cpu"])
        return Recommendation(None, False, text, "unknown", both)
    order = _fitting(rows)
    if order:
        row = order[0]
        return Recommendation(row, row.fits == "checkpointing", _reason(question, rows, row))
    micro = _smaller_batch(question)
    unknown = next((row for row in rows if row.fits == "unknown"), None)
    if unknown is None:
        text = _what_would_fit(question, rows, micro)
        return Recommendation(None, False, text, "does-not-fit", micro_batch=micro)
    missing = tuple(GIVEN_BY[name] for name in unknown.unknown)
    text = f"{unknown.strategy} may fit: give {' and '.join(missing)} to learn whether it does"
    if micro is not None:
        text += f"; {_what_would_fit(question, rows, micro)}"
    return Recommendation(None, False, text, "unknown", missing, micro_batch=micro)


def _fitting(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that fit, in the order of preference."""
    resident = [row for row in rows if row.strategy.stage < 3 and row.strategy.optimizer == "gpu"]
    good = ("yes", "checkpointing")
    return [*(r for r in resident if r.fits == "yes"), *(r for r in rows if r.fits in good)]


def _with_micro(question: EstimateInput, micro: int) -> list[Row]:
    batch = replace(question.batch, micro=micro)
    return _fitting(estimate(replace(question, batch=batch)))


def _smaller_batch(question: EstimateInput) -> int | None:
    """Return the largest smaller micro-batch with which something fits; None: there is none."""
    if question.sized.shape is None or not _with_micro(question, 1):
        return None
    fits, too_large = 1, question.batch.micro
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        if _with_micro(question, middle):
            fits = middle
        else:
            too_large = middle
    return fits if fits < question.batch.micro else None


def _reason(question: EstimateInput, rows: Sequence[Row], row: Row) -> str:
    need = row.gpu_checkpointed if row.fits == "checkpointing" else row.gpu
    faster = [each for each in rows[: rows.index(row)] if each.fits == "no"]
    why = f"; {_shortage(question.limits, faster[-1])}" if faster else ""
    return (
        f"{row.strategy}{_checkpointing(row)}: the fastest that fits, "
        f"{need / GIB:.1f} GiB of each GPU and {row.cpu / GIB:.1f} GiB of each node{why}"
    )


def _shortage(limits: Limits, row: Row) -> str:
    share = 1 - limits.headroom
    if limits.gpu is not None and row.gpu_checkpointed > share * limits.gpu:
        return f"{row.strategy} needs {row.gpu_checkpointed / GIB:.1f} GiB of each GPU"
    if limits.cpu is not None and row.cpu > share * limits.cpu:
        return f"{row.strategy} needs {row.cpu / GIB:.1f} GiB of each node"
    return f"{row.strategy} needs {row.nvme / GIB:.1f} GiB of NVMe on each node"


def _what_would_fit(question: EstimateInput, rows: Sequence[Row], micro: int | None) -> str:
    """Name a smaller micro-batch and a number of nodes, where one of them is enough."""
    size = question.batch.micro
    asked = f" with micro-batch {size}" if question.sized.shape is not None else ""
    ways = []
    if micro is not None:
        row = _with_micro(question, micro)[0]
        ways.append(
            f"with micro-batch {micro}, {row.strategy}{_checkpointing(row)} would (accumulate "
            f"{-(-size * question.accumulation // micro)} of them for the same batch)"
        )
    ways += _more_nodes(question)
    if ways:
        return f"nothing fits{asked}; {'; or '.join(ways)}"
    least = min(rows, key=lambda row: row.gpu_checkpointed)
    shortage = _shortage(question.limits, least)
    return f"nothing fits{asked}, on no number of such nodes; {shortage}"


def _more_nodes(question: EstimateInput) -> list[str]:
    nodes = question.machines.nodes * 2
    while nodes <= MOST_NODES:
        more = replace(question, machines=Machines(nodes, question.machines.gpus_per_node))
        fitting = _fitting(estimate(more))
        if fitting:
            row = fitting[0]
            return [f"{row.strategy}{_checkpointing(row)} would on {nodes} nodes like these"]
        nodes *= 2
    return []


def _checkpointing(row: Row) -> str:
    return " with activation checkpointing" if row.fits == "checkpointing" else ""
