"""When each node and rank of a run did what: spans and marks, equal nodes and ranks folded. Pure.

`timeline_svg.py` draws it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from statistics import median
from typing import TypeVar

from msgspec import Struct, field

from dslaunch.cluster.nodeset import fold, fold_numbers
from dslaunch.plural import counted
from dslaunch.report.event_meaning import Meaning, Sign, meanings
from dslaunch.run.events import Event

Key = TypeVar("Key")
MOST_SINGLE_NODES = 12
MOST_SINGLE_RANKS = 24
"""Up to so many nodes or ranks, each has a separate row."""
MOST_ROWS = 30
"""Rows of nodes, and of ranks."""
MOST_MOMENTS = 60
"""Rows in the list of events."""


class Phase(StrEnum):
    """What a node or rank does during a span."""

    PREPARING = "preparing"
    """Connected; nothing has been started."""
    STARTING = "starting"
    """Processes run, and have not joined the process group."""
    RUNNING = "running"
    AWAY = "away"
    """Its connection is lost, and the run waits for it."""


class Span(Struct, frozen=True):
    """From when to when something lasted. Seconds since the epoch."""

    phase: Phase
    start: float
    end: float


class Mark(Struct, frozen=True):
    """A moment; of several nodes the median, and the first and the last one."""

    sign: Sign
    time: float
    low: float
    high: float
    text: str = ""
    """How a process ended."""


class Row(Struct, frozen=True):
    """Nodes or ranks with the same course."""

    label: str
    note: str
    """How many there are; empty: one."""
    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]

    @property
    def has_failed(self) -> bool:
        """Return whether something failed."""
        return any(mark.sign in (Sign.FAILED, Sign.LOST) for mark in self.marks)


class LineKind(StrEnum):
    """What a moment of the whole run is."""

    ROOT_CAUSE = "root-cause"
    RESTART = "restart"
    STOP = "stop"


class Line(Struct, frozen=True):
    """A moment of the whole run."""

    kind: LineKind
    time: float
    attempt: int = 0
    """Of a restart and a stop: how many restarts there were."""


class Moment(Struct, frozen=True):
    """Equal events of several nodes and ranks."""

    first: float
    last: float
    text: str
    hosts: str
    """Folded."""
    ranks: str
    """Folded; empty: the nodes as a whole."""
    is_failure: bool


class Timeline(Struct, frozen=True):
    """The course of a run."""

    start: float
    end: float
    nodes: tuple[Row, ...]
    ranks: tuple[Row, ...]
    lines: tuple[Line, ...]
    """Restarts, the beginning of the stop and the root cause."""
    moments: tuple[Moment, ...]
    more_nodes: int = 0
    """Groups of nodes that are not shown."""
    more_ranks: int = 0
    more_moments: int = 0


class _Course(Struct):
    """The events of a node or a rank."""

    meanings: list[Meaning] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each of them was."""

    def add(self, meaning: Meaning, time: float) -> None:
        """Add the next event."""
        self.meanings.append(meaning)
        self.times.append(time)


Courses = Mapping[Key, _Course]


def timeline(
    events: Sequence[Event], start: float, end: float, cause: Event | None = None
) -> Timeline:
    """Return the course of a run; `events` are in the order of time.

    `end`: the end of the run, or now. `cause`: the root cause.
    """
    of_node: dict[str, _Course] = defaultdict(_Course)
    of_rank: dict[tuple[str, int], _Course] = defaultdict(_Course)
    said = list(meanings(events))
    for event, meaning in zip(events, said, strict=True):
        if event.host is not None:
            of_node[event.host].add(meaning, event.time)
            if event.rank is not None and event.kind in _OF_PROCESSES:
                of_rank[event.host, event.rank].add(meaning, event.time)
    restarts = [event.time for event in events if event.restart is not None]
    ranks = dict(sorted(of_rank.items(), key=lambda item: item[0][1]))
    # in the order of their ranks; those without ranks, such as spares, come last
    hosts = dict.fromkeys([*(host for host, _ in ranks), *of_node])
    nodes = {host: of_node[host] for host in hosts}
    node_rows = _node_rows(nodes, end, restarts)
    rank_rows = _rank_rows(ranks, _ends_of_nodes(nodes, end), restarts)
    moments = _moments(events, said)
    return Timeline(
        start=start,
        end=max(end, start + 0.001),
        nodes=node_rows[:MOST_ROWS],
        ranks=rank_rows[:MOST_ROWS],
        lines=tuple(_lines(events, cause)),
        moments=moments[:MOST_MOMENTS],
        more_nodes=max(len(node_rows) - MOST_ROWS, 0),
        more_ranks=max(len(rank_rows) - MOST_ROWS, 0),
        more_moments=max(len(moments) - MOST_MOMENTS, 0),
    )


# ---------------------------------------------------------------- nodes


class _Stretch(Struct, frozen=True):
    """A phase of a node: the places of its first and last event in the course."""

    phase: Phase
    first: int
    last: int | None
    """None: it lasts to the end of the run."""


class _Point(Struct, frozen=True):
    """A mark of a node, and the place of its event in the course."""

    sign: Sign
    text: str
    at: int


class _Shape(Struct, frozen=True):
    """What a row shows of the course of a node, but for the times."""

    stretches: tuple[_Stretch, ...]
    points: tuple[_Point, ...]

    @property
    def signature(self) -> tuple[object, ...]:
        """Return what is equal for nodes that share a row."""
        phases = tuple(stretch.phase for stretch in self.stretches)
        return phases, tuple((point.sign, point.text) for point in self.points)


def _node_rows(nodes: Courses[str], end: float, restarts: Sequence[float]) -> tuple[Row, ...]:
    shape_of = cache(_shape)  # most nodes have the same events
    groups = _groups(nodes, lambda course: shape_of(course).signature, MOST_SINGLE_NODES)
    rows = []
    for hosts in groups:
        several = [(shape_of(tuple(nodes[host].meanings)), nodes[host].times) for host in hosts]
        spans = (_span(several, i, end, restarts) for i in range(len(several[0][0].stretches)))
        marks = (_mark(several, i) for i in range(len(several[0][0].points)))
        rows.append(Row(fold(hosts), _note(len(hosts), "node"), tuple(spans), tuple(marks)))
    return tuple(_failed_first(rows, len(nodes) > MOST_SINGLE_NODES))


def _shape(course: tuple[Meaning, ...]) -> _Shape:
    """Return the shape of a course over all attempts."""
    stretches = (*_phases(course), *_times_away(course))
    return _Shape(stretches, tuple(_points(course)))


_PHASE_AFTER: Mapping[str, Phase | None] = {
    "connected": Phase.PREPARING,
    "started": Phase.STARTING,
    "joined": Phase.RUNNING,
    "ended": None,
    "lost": None,
}


def _phases(course: Iterable[Meaning]) -> Iterable[_Stretch]:
    """Yield the phases of a node; None is none of them."""
    since, phase = 0, None
    for at, meaning in enumerate(course):
        after = _PHASE_AFTER.get(meaning.kind, phase)
        is_late_start = phase is Phase.RUNNING and after is Phase.STARTING
        if after is phase or is_late_start:
            continue
        if phase is not None:
            yield _Stretch(phase, since, at)
        since, phase = at, after
    if phase is not None:
        yield _Stretch(phase, since, None)


def _times_away(course: Iterable[Meaning]) -> Iterable[_Stretch]:
    since: int | None = None
    for at, meaning in enumerate(course):
        if meaning.kind == "away":
            since = at
        elif meaning.kind in ("back", "lost") and since is not None:
            yield _Stretch(Phase.AWAY, since, at)
            since = None


def _points(course: Iterable[Meaning]) -> Iterable[_Point]:
    """Yield the marks of a node; of failures the first, since the ranks have theirs."""
    has_failed = False
    for at, meaning in enumerate(course):
        sign = meaning.node_sign
        if sign is None or (sign is Sign.FAILED and has_failed):
            continue
        has_failed = has_failed or sign is Sign.FAILED
        yield _Point(sign, meaning.error, at)


Placed = Sequence[tuple[_Shape, Sequence[float]]]
"""Equal shapes of several nodes, each with the times of the node's events."""


def _span(several: Placed, number: int, end: float, restarts: Sequence[float]) -> Span:
    """Return one phase of nodes with equal shapes, with the medians of their times."""
    starts, ends = [], []
    for shape, times in several:
        stretch = shape.stretches[number]
        start = times[stretch.first]
        last = end if stretch.last is None else times[stretch.last]
        if stretch.phase is not Phase.AWAY:
            last = max(_end_of_attempt(start, last, restarts), start)
        starts.append(start)
        ends.append(last)
    phase = several[0][0].stretches[number].phase
    return Span(phase, start=median(starts), end=median(ends))


def _mark(several: Placed, number: int) -> Mark:
    """Return one mark of nodes with equal shapes, with the median of their times."""
    times = [times[shape.points[number].at] for shape, times in several]
    point = several[0][0].points[number]
    return Mark(point.sign, median(times), min(times), max(times), point.text)


def _end_of_attempt(start: float, end: float, restarts: Sequence[float]) -> float:
    """Return when something that began at `start` was over at the latest: at the next restart."""
    later = bisect_right(restarts, start)
    return restarts[later] if later < len(restarts) else end


def _ends_of_nodes(nodes: Courses[str], end: float) -> dict[str, float]:
    """Return when each node ended or was lost, else the end of the run."""
    found = dict.fromkeys(nodes, end)
    for host, course in nodes.items():
        for meaning, time in zip(course.meanings, course.times, strict=True):
            if meaning.kind in ("ended", "lost"):
                found[host] = time
    return found


# ---------------------------------------------------------------- ranks


_OF_PROCESSES = frozenset({"started", "unstarted", "exit"})
"""The events that make the course of a rank."""


def _rank_rows(
    ranks: Courses[tuple[str, int]], ended: Mapping[str, float], restarts: Sequence[float]
) -> tuple[Row, ...]:
    """Return the rows of ranks; `ended`: when each node ended."""
    rows = []
    for sources in _groups(ranks, _rank_signature, MOST_SINGLE_RANKS):
        hosts = list(dict.fromkeys(host for host, _ in sources))
        name = "rank" if len(sources) == 1 else "ranks"
        label = f"{name} {fold_numbers(rank for _, rank in sources)}"
        note = fold(hosts) if len(hosts) == 1 else counted(len(hosts), "node")
        end = median(ended[host] for host, _ in sources)
        several = [ranks[source] for source in sources]
        rows.append(_rank_row(label, note, several, end, restarts))
    return tuple(_failed_first(rows, len(ranks) > MOST_SINGLE_RANKS))


def _rank_signature(course: tuple[Meaning, ...]) -> tuple[object, ...]:
    """Return what is equal for ranks that share a row."""
    return tuple((meaning.kind, meaning.rank_sign, meaning.rank_text) for meaning in course)


def _rank_row(
    label: str, note: str, several: Sequence[_Course], end: float, restarts: Sequence[float]
) -> Row:
    """Return one row for ranks with equal events, from the medians of the events' times."""
    typical: list[tuple[str, float]] = []
    marks: list[Mark] = []
    of_events = zip(*(course.times for course in several), strict=True)
    for meaning, times in zip(several[0].meanings, of_events, strict=True):
        middle = median(times)
        typical.append((meaning.kind, middle))
        if meaning.rank_sign is not None:
            low, high = min(times), max(times)
            marks.append(Mark(meaning.rank_sign, middle, low, high, meaning.rank_text))
    return Row(label, note, tuple(_rank_spans(typical, end, restarts)), tuple(marks))


def _rank_spans(
    events: Iterable[tuple[str, float]], end: float, restarts: Sequence[float]
) -> Iterable[Span]:
    """Yield when a rank was running, over all its attempts, by the kinds and times of its events;
    `end`: the end of its node."""
    started: float | None = None
    for kind, time in events:
        if kind == "started":
            if started is not None:  # its end in the attempt before is not known
                yield Span(Phase.RUNNING, started, _end_of_attempt(started, time, restarts))
            started = time
        elif kind == "exit":
            begin = time if started is None else started
            yield Span(Phase.RUNNING, min(begin, time), time)
            started = None
    if started is not None and end > started:
        yield Span(Phase.RUNNING, started, _end_of_attempt(started, end, restarts))


# ---------------------------------------------------------------- rows


def _note(count: int, noun: str) -> str:
    return counted(count, noun) if count > 1 else ""


def _failed_first(rows: Iterable[Row], is_folded: bool) -> list[Row]:
    """Return folded rows with those that failed first; rows of single nodes keep their order."""
    return sorted(rows, key=lambda row: not row.has_failed) if is_folded else list(rows)


def _groups(
    courses: Courses[Key], signature: Callable[[tuple[Meaning, ...]], object], most_single: int
) -> list[list[Key]]:
    """Return the keys with equal signatures together, in their order; few are not grouped."""
    if len(courses) <= most_single:
        return [[key] for key in courses]
    signature_once = cache(signature)
    found: dict[object, list[Key]] = {}
    for key, course in courses.items():
        found.setdefault(signature_once(tuple(course.meanings)), []).append(key)
    return list(found.values())


# ---------------------------------------------------------------- moments of the run


def _lines(events: Iterable[Event], cause: Event | None) -> Iterable[Line]:
    """Return the moments of the whole run, each once."""
    lines = [] if cause is None else [Line(LineKind.ROOT_CAUSE, cause.time)]
    attempt = 0
    for event in events:
        if event.restart is not None:
            attempt = event.restart.attempt
            lines.append(Line(LineKind.RESTART, event.time, attempt))
        elif event.kind == "stopping":
            lines.append(Line(LineKind.STOP, event.time, attempt))
    firsts = {(line.kind, line.attempt): line for line in reversed(lines)}
    return sorted(firsts.values(), key=lambda line: line.time)


_NOT_LISTED = frozenset({"contained"})


class _Happened(Struct):
    """Equal events of an attempt."""

    first: float
    last: float
    hosts: set[str] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)


def _moments(events: Iterable[Event], said: Iterable[Meaning]) -> tuple[Moment, ...]:
    """Return equal events of an attempt together, by the time of the first. `said`: their
    meanings."""
    groups: dict[tuple[int, str, bool], _Happened] = {}
    of_attempt: dict[Meaning, _Happened] = {}
    attempt = 0
    for event, meaning in zip(events, said, strict=True):
        if event.restart is not None:
            attempt += 1
            of_attempt = {}
        happened = of_attempt.get(meaning)
        if happened is None:
            if meaning.kind in _NOT_LISTED:
                continue
            key = attempt, meaning.text, meaning.is_failure
            happened = groups.setdefault(key, _Happened(event.time, event.time))
            of_attempt[meaning] = happened
        happened.last = event.time
        if event.host is not None:
            happened.hosts.add(event.host)
        if event.rank is not None:
            happened.ranks.add(event.rank)
    fold_once = cache(fold)  # most events are of the same nodes
    return tuple(
        Moment(
            first=own.first,
            last=own.last,
            text=text,
            hosts=fold_once(tuple(sorted(own.hosts))),
            ranks=fold_numbers(own.ranks),
            is_failure=is_failure,
        )
        for (_, text, is_failure), own in groups.items()
    )
