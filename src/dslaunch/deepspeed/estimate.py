"""Estimate which ZeRO strategies fit a cluster, fastest first, and recommend one. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from dslaunch.deepspeed.activations import Activations, MicroBatch, activations
from dslaunch.deepspeed.communication import Bandwidth, Collective, collectives, seconds
from dslaunch.deepspeed.memory import (
    FASTEST_FIRST,
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
"""The share of the memory kept free for CUDA, NCCL and fragmentation."""
MOST_NODES = 4096
Fits = Literal["yes", "checkpointing", "no", "unknown"]
"""`checkpointing`: only with activation checkpointing; `unknown`: a memory size is missing."""
GIVEN_BY = {"gpu": "--gpu-memory", "cpu": "--cpu-memory", "nvme": "--nvme"}


class Limits(Struct, frozen=True):
    """Available memory in bytes; None: unknown."""

    gpu: int | None = None
    cpu: int | None = None
    nvme: int | None = None
    headroom: float = HEADROOM


class EstimateInput(Struct, frozen=True):
    """Everything that an estimate depends on."""

    sized: Sized
    machines: Machines
    settings: MemorySettings = field(default_factory=MemorySettings)
    limits: Limits = field(default_factory=Limits)
    batch: MicroBatch = field(default_factory=MicroBatch)
    accumulation: int = 1
    bandwidth: Bandwidth = field(default_factory=Bandwidth)


class Row(Struct, frozen=True):
    """The estimate for one strategy."""

    strategy: Strategy
    theirs: MemoryNeed | None
    """DeepSpeed's own estimate of the model states."""
    states: MemoryNeed
    """The model states, with the errors of that estimate corrected."""
    faults: tuple[str, ...]
    parts: tuple[MemoryPart, ...]
    """The parts of model states and buckets."""
    buckets: int
    """Bytes per GPU of reduce buckets and gathered parameters; not all in use at the peak."""
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
    """The memory sizes that are needed to tell whether it fits: `gpu`, `cpu`, `nvme`."""


def estimate(question: EstimateInput) -> tuple[Row, ...]:
    """Return the estimates of all strategies, fastest first."""
    return tuple(_row(question, strategy) for strategy in FASTEST_FIRST)


def by_nodes(question: EstimateInput, counts: Sequence[int]) -> dict[int, tuple[Row, ...]]:
    """Return the estimates for other numbers of such nodes."""
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
    """Return whether it fits, and which memory sizes are missing to tell.

    A size that is known and too small decides, even if others are missing. Memory that a node needs
    only while the model is loaded does not count as missing.
    """
    share = 1 - limits.headroom
    offloads = "cpu" in (strategy.optimizer, strategy.params) or nvme > 0
    wanted = {"gpu": (limits.gpu, checkpointed), "cpu": (limits.cpu, cpu)}
    if nvme:
        wanted["nvme"] = (limits.nvme, nvme)
    if any(limit is not None and need > share * limit for limit, need in wanted.values()):
        return "no", ()
    needed = ["gpu"]
    if offloads:
        needed.append("cpu")
    if nvme:
        needed.append("nvme")
    unknown = tuple(name for name in needed if wanted[name][0] is None)
    if unknown or limits.gpu is None:
        return "unknown", unknown
    return ("yes" if full <= share * limits.gpu else "checkpointing"), ()


Outcome = Literal["fits", "does-not-fit", "unknown"]
Place = Literal["gpu", "cpu", "nvme"]


class Shortage(Struct, frozen=True):
    """A strategy that does not fit, and the memory that it needs most urgently."""

    strategy: Strategy
    place: Place
    """`gpu`: bytes per GPU; `cpu` and `nvme`: bytes per node."""
    need: int


class Alternative(Struct, frozen=True):
    """A change with which something fits: a smaller micro-batch, or more nodes."""

    row: Row
    micro_batch: int | None = None
    accumulation: int | None = None
    """Micro-batches per step, for the same batch size; set with `micro_batch`."""
    nodes: int | None = None


class Recommendation(Struct, frozen=True):
    """The strategy to use; or what would make one fit, or what must be known to tell."""

    outcome: Outcome
    row: Row | None = None
    """None unless the outcome is `fits`."""
    checkpointing: bool = False
    shortage: Shortage | None = None
    """Fits: of the next faster strategy. Does not fit: of the strategy that needs least."""
    candidate: Strategy | None = None
    """Unknown: the fastest strategy that may fit."""
    missing: tuple[str, ...] = ()
    """Unknown: the options that would tell."""
    alternatives: tuple[Alternative, ...] = ()

    @property
    def micro_batch(self) -> int | None:
        """Return the largest micro-batch that fits, if the requested one does not."""
        return next((each.micro_batch for each in self.alternatives if each.micro_batch), None)


def recommend(question: EstimateInput, rows: Sequence[Row]) -> Recommendation:
    """Return the fastest strategy that fits; if none does, what would make one fit.

    Among ZeRO-0 to 2 on the GPU, activation checkpointing, which computes a third more, comes
    after all without it.
    """
    if question.limits.gpu is None and question.limits.cpu is None:
        return Recommendation("unknown", missing=(GIVEN_BY["gpu"], GIVEN_BY["cpu"]))
    order = _fitting(rows)
    if order:
        row = order[0]
        faster = [each for each in rows[: rows.index(row)] if each.fits == "no"]
        shortage = _shortage(question.limits, faster[-1]) if faster else None
        return Recommendation("fits", row, row.fits == "checkpointing", shortage)
    smaller = _smaller_batch(question)
    unknown = next((row for row in rows if row.fits == "unknown"), None)
    if unknown is None:
        least = min(rows, key=lambda row: row.gpu_checkpointed)
        return Recommendation(
            "does-not-fit",
            shortage=_shortage(question.limits, least),
            alternatives=(*smaller, *_more_nodes(question)),
        )
    return Recommendation(
        "unknown",
        candidate=unknown.strategy,
        missing=tuple(GIVEN_BY[name] for name in unknown.unknown),
        alternatives=(*smaller, *_more_nodes(question)) if smaller else (),
    )


def _fitting(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that fit, in the order of preference."""
    resident = [row for row in rows if row.strategy.stage < 3 and row.strategy.optimizer == "gpu"]
    good = ("yes", "checkpointing")
    return [*(r for r in resident if r.fits == "yes"), *(r for r in rows if r.fits in good)]


def _with_micro(question: EstimateInput, micro: int) -> list[Row]:
    batch = replace(question.batch, micro=micro)
    return _fitting(estimate(replace(question, batch=batch)))


def _smaller_batch(question: EstimateInput) -> tuple[Alternative, ...]:
    """Return the largest smaller micro-batch with which something fits; empty if none does."""
    if question.sized.shape is None or not _with_micro(question, 1):
        return ()
    fits, too_large = 1, question.batch.micro
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        if _with_micro(question, middle):
            fits = middle
        else:
            too_large = middle
    if fits >= question.batch.micro:
        return ()
    batch = question.batch.micro * question.accumulation
    row = _with_micro(question, fits)[0]
    return (Alternative(row, micro_batch=fits, accumulation=math.ceil(batch / fits)),)


def _shortage(limits: Limits, row: Row) -> Shortage:
    share = 1 - limits.headroom
    if limits.gpu is not None and row.gpu_checkpointed > share * limits.gpu:
        return Shortage(row.strategy, "gpu", row.gpu_checkpointed)
    if limits.cpu is not None and row.cpu > share * limits.cpu:
        return Shortage(row.strategy, "cpu", row.cpu)
    return Shortage(row.strategy, "nvme", row.nvme)


def _more_nodes(question: EstimateInput) -> tuple[Alternative, ...]:
    """Return the number of such nodes with which something fits; empty if none does."""
    nodes = question.machines.nodes * 2
    while nodes <= MOST_NODES:
        more = replace(question, machines=Machines(nodes, question.machines.gpus_per_node))
        fitting = _fitting(estimate(more))
        if fitting:
            return (Alternative(fitting[0], nodes=nodes),)
        nodes *= 2
    return ()
