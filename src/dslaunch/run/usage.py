"""What the nodes of a run use, measured while it is running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins

from dslaunch.json_text import json_text
from dslaunch.protocol.usage import Throttle
from dslaunch.recorded import reader
from dslaunch.run.json_lines import valid_line, valid_lines
from dslaunch.run.recorded_values import (
    Count,
    Degrees,
    Quantity,
    RankNumber,
    Share,
    Short,
    Time,
)

Lateness = Annotated[float, Meta(ge=-1e6, le=1e6)]
USAGE = "usage.jsonl"
"""The file of a run directory with one `NodeUsage` per line, in the order of arrival."""


class GpuUsage(Struct, frozen=True):
    """One GPU at one time. None: the driver does not say."""

    index: Annotated[int, Meta(ge=0, le=1023)]
    busy: Share | None = None
    """Share of the time in which a kernel ran, from 0 to 1."""
    memory_used: Count | None = None
    """Bytes."""
    memory_total: Count | None = None
    """Bytes."""
    power: Quantity | None = None
    """Watts."""
    temperature: Degrees | None = None
    """Degrees Celsius."""
    clock: Count | None = None
    """MHz of the streaming multiprocessors."""
    throttled: tuple[Throttle, ...] = ()
    """Why its clock is reduced: `thermal`, `power`, `power-brake` or `hardware`."""


class RankUsage(Struct, frozen=True):
    """The processes of one rank at one time."""

    rank: RankNumber
    cpu: Quantity
    """CPUs that were busy for it, as 1.5."""
    memory: Count
    """Resident bytes; what its processes share counts for each."""
    busy: Share | None = None
    """Share of the time in which the main thread of its busiest process ran or waited for a CPU; a
    rank that waits for others does neither."""
    cpu_wait: Share | None = None
    """Share of the time in which that thread waited for a CPU."""
    late: Lateness | None = None
    """By how much it entered collectives later than the median rank, as a share of the step time:
    a median; below 0: earlier."""


class NodeUsage(Struct, frozen=True):
    """One node at one time; rates are averages since the measurement before."""

    time: Time
    """Seconds since the epoch by the launcher's clock."""
    host: Short
    cpu: Share
    """Share of all its CPUs that were busy, from 0 to 1."""
    load: Quantity
    """Processes that ran or waited for a CPU, average of one minute."""
    memory_used: Count
    """Bytes."""
    memory_total: Count
    """Bytes."""
    received: Quantity | None = None
    """Bytes per second over all its network interfaces but loopback."""
    sent: Quantity | None = None
    """Bytes per second."""
    fabric_received: Quantity | None = None
    """Bytes per second over InfiniBand or RoCE."""
    fabric_sent: Quantity | None = None
    """Bytes per second."""
    disk_read: Quantity | None = None
    """Bytes per second."""
    disk_written: Quantity | None = None
    """Bytes per second."""
    cpu_throttled: Share | None = None
    """Share of the time in which a CPU limit held the run's processes back, from 0 to 1."""
    gpus: tuple[GpuUsage, ...] = ()
    ranks: tuple[RankUsage, ...] = ()
    cpus: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    """How many CPUs it has."""
    link_errors: Count | None = None
    """Errors of its network and fabric links since the measurement before."""
    gpu_error: Short | None = None
    """Why its GPUs could not be read."""

    def as_data(self) -> dict[str, Any]:
        """Return the fields that are known, for JSON."""
        known: dict[str, Any] = _known(to_builtins(self))
        return known


def _known(value: Any) -> Any:
    """Return plain data without the members of objects that are null."""
    if isinstance(value, dict):
        return {name: _known(each) for name, each in value.items() if each is not None}
    return [_known(each) for each in value] if isinstance(value, list) else value


def read_usage(directory: Path) -> Iterator[NodeUsage]:
    """Yield the measurements that a run directory has, in the order of arrival.

    Damaged lines are left out: the last one of a running run may be incomplete. Without a file
    that can be read there are none.
    """
    yield from valid_lines(directory / USAGE, _measurements())


def parse_usage(line: bytes) -> NodeUsage | None:
    """Return the measurement of a line; None if it is invalid."""
    return valid_line(line, _measurements())


def usage_line(usage: NodeUsage) -> bytes:
    """Return a measurement as a line of the file."""
    return json_text(usage.as_data(), compact=True).encode() + b"\n"


@cache
def _measurements() -> Callable[[bytes], NodeUsage]:
    return reader(NodeUsage)
