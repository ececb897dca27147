"""The counters of a node (`node/usage.py`), as typed and bounded values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter

from dslaunch.protocol.values import Count, Pid, RankKey, Sent, Several, Short

MOST_DEVICES = 256
MOST_GPUS = 64
MOST_RANKS = 4096
MOST_OUTPUT = 1024
"""Characters of the last output of a rank."""
Quantity = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Degrees = Annotated[float, Field(ge=-100, le=1000, allow_inf_nan=False)]
Throttle = Literal["thermal", "power", "power-brake", "hardware"]
"""Why a GPU's clock is reduced: it is too hot; its power limit; the server's power supply; another
reason of the hardware."""
MOST_THROTTLES = 4
"""All reasons of `Throttle`."""
RankNumber = Annotated[int, Field(ge=0, le=2**20)]
Pair = tuple[Count, Count]
Triple = tuple[Count, Count, Count]
Pairs = Annotated[
    Mapping[Short, Annotated[Pair, Field(strict=False)]], Field(max_length=MOST_DEVICES)
]
Triples = Annotated[
    Mapping[Short, Annotated[Triple, Field(strict=False)]], Field(max_length=MOST_DEVICES)
]


def _itself(value: Hashable) -> Hashable:
    return value


def _unique(key: Callable[[Any], Hashable] = _itself) -> AfterValidator:
    """Refuse two items of the same key: each is a series of the exported metrics."""

    def check(items: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(set(map(key, items))) < len(items):
            raise ValueError("holds an item twice")
        return items

    return AfterValidator(check)


class MeasuredGpu(Sent):
    """One GPU at one time; fields as of `run.usage.GpuUsage`."""

    index: Annotated[int, Field(ge=0, le=1023)]
    busy: Share | None = None
    memory_used: Count | None = None
    memory_total: Count | None = None
    power: Quantity | None = None
    temperature: Degrees | None = None
    clock: Count | None = None
    throttled: Annotated[Several[Throttle], Field(max_length=MOST_THROTTLES), _unique()] = ()


class RankCounters(Sent):
    """The processes of one rank."""

    rank: RankNumber
    pid: Pid
    cpu: Quantity
    """CPU seconds since they were started."""
    memory: Count
    """Resident bytes."""
    busiest: Pid
    """Its process with the most CPU time."""
    ran: Quantity
    """Seconds that the main thread of that process ran."""
    waited: Quantity
    """Seconds that it waited for a CPU."""


class NodeCounters(Sent):
    """The counters of a node at one time. Sizes are bytes, times seconds."""

    monotonic: Quantity
    """The node's clock, which is never set."""
    cpus: Annotated[int, Field(ge=1, le=1 << 20)]
    cpu_busy: Quantity
    cpu_total: Quantity
    load: Quantity
    memory_total: Count
    memory_free: Count
    network: Triples
    """Received, sent, errors by interface."""
    fabric: Triples
    """Received, sent, errors by port."""
    disks: Pairs
    """Read, written by disk."""
    limits: Pairs
    """Periods of a CPU limit, and those in which it was reached, by control group."""
    ranks: Annotated[
        Several[RankCounters], Field(max_length=MOST_RANKS), _unique(lambda each: each.rank)
    ]
    output: Annotated[
        Mapping[RankKey, Annotated[str, Field(max_length=MOST_OUTPUT)]],
        Field(max_length=MOST_RANKS),
    ] = Field(default_factory=dict)
    """The end of what each rank has printed."""
    gpus: Annotated[
        Several[MeasuredGpu], Field(max_length=MOST_GPUS), _unique(lambda each: each.index)
    ] = ()
    gpu_error: Short | None = None
    """Why the GPUs could not be read; None: they were, or there are none."""


COUNTERS: TypeAdapter[NodeCounters] = TypeAdapter(NodeCounters)
