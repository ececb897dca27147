"""Estimate the communication of one training step, and its minimum time. Pure.

Volumes are bytes that each GPU sends with ring algorithms: (N-1)/N of the data for an all-gather or
a reduce-scatter, twice that for an all-reduce.
"""

from __future__ import annotations

from msgspec import Struct

from dslaunch.deepspeed.memory import DEFAULTS, Machines, MemorySettings, Model, Strategy

HOPS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}


class Collective(Struct, frozen=True):
    """One kind of operation on all parameters or gradients."""

    operation: str
    what: str
    """Its name for users."""
    times: int
    """Number of operations per step, with all its micro-batches."""
    sent: int
    """Total bytes that each GPU sends."""


class Bandwidth(Struct, frozen=True):
    """Bytes per second; None: unknown."""

    network: float | None = None
    """Between a node and the others."""
    inside: float | None = None
    """Between a GPU and the others of its node."""


def collectives(
    model: Model,
    machines: Machines,
    strategy: Strategy,
    settings: MemorySettings = DEFAULTS,
    accumulation: int = 1,
) -> tuple[Collective, ...]:
    """Return the collectives of one step.

    Stages 1 and 2 reduce gradients with all-reduce, not reduce-scatter, unless
    use_multi_rank_bucket_allreduce is false (DeepSpeed 0.19.8, zero/config.py and
    stage_1_and_2.py `average_tensor`; measured): 1.5 times the volume of the ZeRO paper. Stage 2
    reduces after every micro-batch, stages 0 and 1 once per step. Stage 3 gathers parameters for
    every forward and backward pass, but once only for the last layers, whose next use is nearer
    than stage3_max_reuse_distance.
    """
    total = model.params
    if strategy.stage == 3:
        again = total - min(total, settings.max_reuse_distance // 2)
        kinds = [
            ("all-gather", "all-gather", total, accumulation),
            ("all-gather", "all-gather for backward", again, accumulation),
            ("reduce-scatter", "reduce-scatter", total, accumulation),
        ]
    else:
        reduced = accumulation if strategy.stage == 2 else 1
        kinds = [("all-reduce", "all-reduce", total, reduced)]
        if strategy.stage:
            kinds.append(("all-gather", "all-gather", total, 1))
    ring = settings.width * (machines.gpus - 1) / machines.gpus
    return tuple(
        Collective(operation, what, times, int(HOPS[operation] * times * size * ring))
        for operation, what, size, times in kinds
        if size
    )


def seconds(
    moved: tuple[Collective, ...], machines: Machines, bandwidth: Bandwidth
) -> float | None:
    """Return the minimum time in seconds without overlap with computation; None: unknown bandwidth.

    A ring over all GPUs enters and leaves each node once, so a node sends as much as one GPU.
    """
    sent = sum(each.sent for each in moved)
    if machines.gpus == 1:
        return 0.0
    paths = [bandwidth.inside] if machines.gpus_per_node > 1 else []
    if machines.nodes > 1:
        paths.append(bandwidth.network)
    known = [path for path in paths if path]
    if not known or (machines.nodes > 1 and not bandwidth.network):
        return None
    return sent / min(known)
