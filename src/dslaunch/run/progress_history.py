"""How a training went, by what its ranks printed: steps, losses and the pace of every rank."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dslaunch.run.progress import ProgressReader
from dslaunch.run.view import View

if TYPE_CHECKING:
    from dslaunch.run.events import Line

MOST_POINTS = 1000
"""Points that are kept of a rank, at most; of more, every second one is dropped again and again."""
LAST_LINES = 20
"""Lines of each rank that are kept."""
LONGEST_LINE = 2000
"""Characters of a line that are read or kept."""


class ProgressPoint(Struct, frozen=True):
    """What one line of a rank says."""

    time: float
    """Seconds since the epoch."""
    step: int
    loss: float | None = None
    steps_per_second: float | None = None
    """As the rank printed it."""


class RankPace(Struct, frozen=True):
    """The pace of one rank."""

    rank: int
    host: str
    seconds_per_step: float
    """Median over the run."""
    last_step: int


class ProgressHistory(Struct, frozen=True):
    """The progress of a run from its start."""

    points: tuple[ProgressPoint, ...] = ()
    """Of the lowest rank that prints any."""
    rank: int | None = None
    """That rank."""
    paces: tuple[RankPace, ...] = ()
    """Of all ranks that print steps, the slowest first."""


class ProgressCollector(View):
    """A view that collects the progress and the last lines of every rank."""

    def __init__(self, formats: Sequence[str] = ()) -> None:
        """`formats`: the valid regular expressions of `Cluster.progress`."""
        self._formats = tuple(map(re.compile, formats))
        self.last_lines: dict[tuple[str, int | None], list[str]] = {}
        self._points: dict[int, _Sampled] = {}
        self._hosts: dict[int, str] = {}
        self._readers: dict[int, ProgressReader] = {}

    def line(self, line: Line) -> None:
        """Read a line of output."""
        text = line.text[:LONGEST_LINE]
        kept = self.last_lines.setdefault((line.host, line.rank), [])
        kept.append(text)
        del kept[:-LAST_LINES]
        if line.rank is None:
            return
        reader = self._readers.get(line.rank)
        if reader is None:
            reader = self._readers[line.rank] = ProgressReader(self._formats)
        found = reader.read(text)
        if found is None or found.step is None:
            return
        self._hosts[line.rank] = line.host
        points = self._points.setdefault(line.rank, _Sampled())
        rate = found.steps_per_second
        points.add(ProgressPoint(line.time, found.step, _finite(found.loss), _finite(rate)))

    def event(self, event: object) -> None:
        """Do nothing: only output is read."""

    def history(self) -> ProgressHistory:
        """Return what has been collected."""
        if not self._points:
            return ProgressHistory()
        rank = min(self._points)
        paces = [
            RankPace(number, self._hosts[number], seconds, sampled.points[-1].step)
            for number, sampled in self._points.items()
            if (seconds := seconds_per_step(sampled.points)) is not None
        ]
        paces.sort(key=lambda pace: (-pace.seconds_per_step, pace.rank))
        return ProgressHistory(tuple(self._points[rank].points), rank, tuple(paces))


class _Sampled(Struct):
    """Points of one rank, evenly thinned out."""

    points: list[ProgressPoint] = field(default_factory=list)
    every: int = 1
    seen: int = 0

    def add(self, point: ProgressPoint) -> None:
        last = self.points[-1] if self.points else None
        if last is not None and last.step == point.step:
            self.points[-1] = _merged(last, point)
            return
        self.seen += 1
        if self.seen % self.every:
            return
        self.points.append(point)
        if len(self.points) > MOST_POINTS:
            self.points = self.points[::2]
            self.every *= 2


def _merged(earlier: ProgressPoint, later: ProgressPoint) -> ProgressPoint:
    """Return two lines about one step as one point, with the time of the first."""
    return ProgressPoint(
        time=earlier.time,
        step=earlier.step,
        loss=earlier.loss if later.loss is None else later.loss,
        steps_per_second=(
            earlier.steps_per_second if later.steps_per_second is None else later.steps_per_second
        ),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def seconds_per_step(points: Sequence[ProgressPoint]) -> float | None:
    """Return the median time of a step; None: too few steps were printed."""
    times = [1 / rate for _, rate in step_rates(points) if rate > 0]
    return median(times) if times else None


def step_rates(points: Sequence[ProgressPoint]) -> list[tuple[float, float]]:
    """Return pairs of a time and the steps per second since the point before.

    A step that is not greater than the one before begins another attempt or epoch. Lines that
    arrived together have the same time, so only points with different times count.
    """
    rates = []
    before: ProgressPoint | None = None
    for point in points:
        if before is None or point.step <= before.step:
            before = point
            continue
        seconds = point.time - before.time
        if seconds > 0:
            rates.append((point.time, (point.step - before.step) / seconds))
            before = point
    return rates


class SlowerRank(Struct, frozen=True):
    """A rank that is slower than the others."""

    pace: RankPace
    slower: float
    """Its time per step in relation to the median of all ranks, as 1.3."""


NOTABLE = 1.05
"""A rank counts as slower from here on."""
MOST_SLOWER = 10
"""Slower ranks that are named."""


def slowest_ranks(paces: Sequence[RankPace]) -> tuple[SlowerRank, ...]:
    """Return the ranks whose steps take notably longer than the median, the slowest first, at most
    `MOST_SLOWER`."""
    if len(paces) < 2:
        return ()
    middle = median(pace.seconds_per_step for pace in paces)
    found = [SlowerRank(pace, pace.seconds_per_step / middle) for pace in paces]
    return tuple(each for each in found if each.slower >= NOTABLE)[:MOST_SLOWER]
