"""What the nodes of a run used over time: one curve per measure, over all nodes. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from statistics import median

from msgspec import Struct

from dslaunch.run.usage import GpuUsage, NodeUsage

MOST_BUCKETS = 120
"""Points of a curve."""


class Measure(StrEnum):
    """What is measured."""

    GPU_BUSY = "gpu-busy"
    GPU_MEMORY = "gpu-memory"
    GPU_POWER = "gpu-power"
    GPU_TEMPERATURE = "gpu-temperature"
    CPU = "cpu"
    MEMORY = "memory"
    RECEIVED = "received"
    SENT = "sent"
    FABRIC_RECEIVED = "fabric-received"
    FABRIC_SENT = "fabric-sent"
    DISK_READ = "disk-read"
    DISK_WRITTEN = "disk-written"
    CPU_THROTTLED = "cpu-throttled"


class UsagePoint(Struct, frozen=True):
    """All nodes in one interval."""

    time: float
    """Seconds since the epoch."""
    low: float
    middle: float
    """The median of the nodes."""
    high: float


class UsageCurve(Struct, frozen=True):
    """One measure over time. Units are those of `NodeUsage`."""

    measure: Measure
    points: tuple[UsagePoint, ...]
    nodes: int
    """How many nodes report it."""
    lowest: str
    """The node with the lowest average."""
    highest: str
    """The node with the highest average."""


class RankLateness(Struct, frozen=True):
    """How late one rank was during a run."""

    rank: int
    host: str
    late: float
    """By how much it entered collectives later than the median rank, as a share of the step time;
    a median over the run."""


NOTABLE_LATENESS = 0.05
"""From here on a rank is listed."""
MOST_LATE = 10
"""Ranks that are listed, at most."""


class UsageHistory:
    """What measurements show over time. None is kept: a long run of many nodes has more of them
    than there is memory."""

    def __init__(self, start: float, end: float) -> None:
        """Curves are drawn between these times."""
        self._start, self._end = start, end
        self._span = max(end - start, 1.0)
        self._sums: dict[Measure, dict[tuple[int, str], _Sum]] = {}
        """By interval and node."""
        self._lateness: dict[tuple[int, str], list[float]] = {}
        """By rank and node."""

    @classmethod
    def of(cls, usage: Iterable[NodeUsage], start: float, end: float) -> UsageHistory:
        """Return what these measurements show."""
        history = cls(start, end)
        for sample in usage:
            history.add(sample)
        return history

    def add(self, sample: NodeUsage) -> None:
        """Add a measurement."""
        for rank in sample.ranks:
            if rank.late is not None:
                self._lateness.setdefault((rank.rank, sample.host), []).append(rank.late)
        earliest, latest = self._start - self._span, self._end + self._span
        if not earliest <= sample.time <= latest:
            return
        bucket = int((sample.time - self._start) / self._span * MOST_BUCKETS)
        source = min(max(bucket, 0), MOST_BUCKETS - 1), sample.host
        for measure, read in _READ.items():
            value = read(sample)
            if value is not None and math.isfinite(value):
                sums = self._sums.setdefault(measure, {})
                total, count = sums.get(source, _NOTHING)
                sums[source] = total + value, count + 1

    def curves(self) -> tuple[UsageCurve, ...]:
        """Return a curve for each measure that any node reports."""
        return tuple(
            _curve(measure, self._sums[measure], self._start, self._span)
            for measure in Measure
            if measure in self._sums
        )

    def notably_late(self) -> tuple[RankLateness, ...]:
        """Return the ranks that were notably late, the latest first."""
        medians = {source: median(several) for source, several in self._lateness.items()}
        found = [
            RankLateness(rank, host, late)
            for (rank, host), late in medians.items()
            if late >= NOTABLE_LATENESS
        ]
        return tuple(sorted(found, key=lambda each: (-each.late, each.rank)))[:MOST_LATE]


_Sum = tuple[float, int]
"""The sum of values, and how many they are."""
_NOTHING: _Sum = (0.0, 0)


def _curve(
    measure: Measure, sums: Mapping[tuple[int, str], _Sum], start: float, span: float
) -> UsageCurve:
    of_bucket: dict[int, list[float]] = defaultdict(list)
    of_host: dict[str, list[float]] = defaultdict(list)
    for (bucket, host), (total, count) in sums.items():
        mean = total / count
        of_bucket[bucket].append(mean)
        of_host[host].append(mean)
    average = {host: sum(values) / len(values) for host, values in of_host.items()}
    points = tuple(
        UsagePoint(
            time=start + (bucket + 0.5) / MOST_BUCKETS * span,
            low=min(values),
            middle=median(values),
            high=max(values),
        )
        for bucket, values in sorted(of_bucket.items())
    )
    return UsageCurve(
        measure=measure,
        points=points,
        nodes=len(average),
        lowest=min(average, key=average.__getitem__),
        highest=max(average, key=average.__getitem__),
    )


def _gpus(read: Callable[[GpuUsage], float | None]) -> Callable[[NodeUsage], float | None]:
    """Return what reads the mean over the GPUs of a node."""

    def of_node(sample: NodeUsage) -> float | None:
        values = [value for gpu in sample.gpus if (value := read(gpu)) is not None]
        return sum(values) / len(values) if values else None

    return of_node


def _share(used: int | None, total: int | None) -> float | None:
    return used / total if used is not None and total else None


_READ: Mapping[Measure, Callable[[NodeUsage], float | None]] = {
    Measure.GPU_BUSY: _gpus(lambda gpu: gpu.busy),
    Measure.GPU_MEMORY: _gpus(lambda gpu: _share(gpu.memory_used, gpu.memory_total)),
    Measure.GPU_POWER: _gpus(lambda gpu: gpu.power),
    Measure.GPU_TEMPERATURE: _gpus(lambda gpu: gpu.temperature),
    Measure.CPU: lambda sample: sample.cpu,
    Measure.MEMORY: lambda sample: _share(sample.memory_used, sample.memory_total),
    Measure.RECEIVED: lambda sample: sample.received,
    Measure.SENT: lambda sample: sample.sent,
    Measure.FABRIC_RECEIVED: lambda sample: sample.fabric_received,
    Measure.FABRIC_SENT: lambda sample: sample.fabric_sent,
    Measure.DISK_READ: lambda sample: sample.disk_read,
    Measure.DISK_WRITTEN: lambda sample: sample.disk_written,
    Measure.CPU_THROTTLED: lambda sample: sample.cpu_throttled,
}
