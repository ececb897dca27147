"""Rates of what a node uses, from two readings of its counters. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dslaunch.protocol.usage import MeasuredGpu, NodeCounters, RankCounters
from dslaunch.run.usage import GpuUsage, NodeUsage, RankUsage

SHORTEST = 0.05
"""Seconds between two readings of which rates are made: CPU time is counted in steps of 0.01 s."""


class Reading(Struct, frozen=True):
    """The counters of a node, and when they arrived."""

    time: float
    """Seconds since the epoch by the launcher's clock."""
    host: str
    counters: NodeCounters


def usage_between(before: Reading, now: Reading) -> NodeUsage | None:
    """Return what a node used between two readings; None: there is too little time between them,
    or the node was restarted.

    A counter that is smaller than before was reset, and a device or rank that is new has no
    reading before: neither counts until the next reading.
    """
    old, new = before.counters, now.counters
    seconds = new.monotonic - old.monotonic
    if seconds < SHORTEST:
        return None
    received, sent = _rates(old.network, new.network, seconds)
    fabric_received, fabric_sent = _rates(old.fabric, new.fabric, seconds)
    disk_read, disk_written = _rates(old.disks, new.disks, seconds)
    return NodeUsage(
        time=now.time,
        host=now.host,
        cpu=_share(new.cpu_busy - old.cpu_busy, new.cpu_total - old.cpu_total),
        load=new.load,
        memory_used=max(0, new.memory_total - new.memory_free),
        memory_total=new.memory_total,
        received=received,
        sent=sent,
        fabric_received=fabric_received,
        fabric_sent=fabric_sent,
        disk_read=disk_read,
        disk_written=disk_written,
        cpu_throttled=_throttled(old.limits, new.limits),
        gpus=tuple(map(_gpu, new.gpus)),
        ranks=_ranks(old.ranks, new.ranks, seconds),
        cpus=new.cpus,
        link_errors=_errors(old, new),
        gpu_error=new.gpu_error,
    )


def _share(part: float, whole: float) -> float:
    if whole <= 0:
        return 0.0
    return round(min(1.0, max(0.0, part / whole)), 4)


Counters = Mapping[str, tuple[int, ...]]


def _grown(old: Counters, new: Counters) -> list[list[int]]:
    """Return by how much the counters of each device have grown that has them in both readings."""
    pairs = ((old[name], values) for name, values in new.items() if name in old)
    grown = ([after - first for first, after in zip(*pair, strict=True)] for pair in pairs)
    return [each for each in grown if min(each) >= 0]


def _rates(old: Counters, new: Counters, seconds: float) -> tuple[float | None, float | None]:
    """Return the bytes per second of the first two counters, over all devices; None: no device."""
    grown = _grown(old, new)
    if not grown:
        return None, None
    first, second = (sum(each[at] for each in grown) / seconds for at in (0, 1))
    return round(first), round(second)


def _errors(old: NodeCounters, new: NodeCounters) -> int | None:
    links = _grown(old.network, new.network) + _grown(old.fabric, new.fabric)
    return sum(each[2] for each in links) if links else None


def _throttled(old: Counters, new: Counters) -> float | None:
    """Return the share of the periods in which the CPU limit of a group was reached, of the group
    where it is largest; None: no group has a limit."""
    if not new:
        return None
    shares = (_share(throttled, periods) for periods, throttled in _grown(old, new))
    return max(shares, default=0.0)


def _ranks(
    old: tuple[RankCounters, ...], new: tuple[RankCounters, ...], seconds: float
) -> tuple[RankUsage, ...]:
    before = {(each.rank, each.pid): each for each in old}
    pairs = ((before.get((each.rank, each.pid)), each) for each in new)
    return tuple(_rank(first, last, seconds) for first, last in pairs if first is not None)


def _rank(old: RankCounters, new: RankCounters, seconds: float) -> RankUsage:
    ran, waited = new.ran - old.ran, new.waited - old.waited
    counted = new.busiest == old.busiest and new.ran > 0
    return RankUsage(
        rank=new.rank,
        cpu=round(max(0.0, new.cpu - old.cpu) / seconds, 3),
        memory=new.memory,
        busy=_share(ran + waited, seconds) if counted else None,
        cpu_wait=_share(waited, seconds) if counted else None,
    )


def _gpu(gpu: MeasuredGpu) -> GpuUsage:
    return GpuUsage(
        index=gpu.index,
        busy=gpu.busy,
        memory_used=gpu.memory_used,
        memory_total=gpu.memory_total,
        power=gpu.power,
        temperature=gpu.temperature,
        clock=gpu.clock,
        throttled=gpu.throttled,
    )
