"""When each node and rank of a run did what: spans and marks, equal nodes and ranks folded. Pure.

`timeline_svg.py` draws it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from statistics import median
from typing import TypeVar

from dslaunch.cluster.nodeset import fold, fold_numbers
from dslaunch.plural import counted
from dslaunch.report.straggler_text import straggler_rows
from dslaunch.run.events import Event
from dslaunch.run.exit_text import describe, signal_name
from dslaunch.run.hang_text import hang_text
from dslaunch.run.outcome import failed
from dslaunch.run.outcome_text import restart_text, stop_text

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


class Sign(StrEnum):
    """The kind of a mark."""

    CONNECTED = "connected"
    SHIPPED = "shipped"
    JOINED = "joined"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    """Ended because the run was stopped."""
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when something lasted. Seconds since the epoch."""

    phase: Phase
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment; of several nodes the median, and the first and the last one."""

    sign: Sign
    time: float
    low: float
    high: float
    text: str = ""
    """How a process ended."""


@dataclass(frozen=True, slots=True)
class Row:
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


@dataclass(frozen=True, slots=True)
class Line:
    """A moment of the whole run."""

    kind: LineKind
    time: float
    attempt: int = 0
    """Of a restart and a stop: how many restarts there were."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Equal events of several nodes and ranks."""

    first: float
    last: float
    text: str
    hosts: str
    """Folded."""
    ranks: str
    """Folded; empty: the nodes as a whole."""
    is_failure: bool


@dataclass(frozen=True, slots=True)
class Timeline:
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


@dataclass(slots=True)
class _Course:
    """The spans and marks of one node."""

    spans: list[Span]
    marks: list[Mark]

    @property
    def signature(self) -> tuple[object, ...]:
        phases = tuple(span.phase for span in self.spans)
        return phases, tuple((mark.sign, mark.text) for mark in self.marks)


def timeline(
    events: Sequence[Event], start: float, end: float, cause: Event | None = None
) -> Timeline:
    """Return the course of a run; `events` are in the order of time.

    `end`: the end of the run, or now. `cause`: the root cause.
    """
    of_node: dict[str, list[Event]] = {}
    of_rank: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        if event.host is not None:
            of_node.setdefault(event.host, []).append(event)
            if event.rank is not None and event.kind in _OF_PROCESSES:
                of_rank.setdefault((event.host, event.rank), []).append(event)
    restarts = [event.time for event in events if event.restart is not None]
    ranks = dict(sorted(of_rank.items(), key=lambda item: item[0][1]))
    # in the order of their ranks; those without ranks, such as spares, come last
    hosts = dict.fromkeys([*(host for host, _ in ranks), *of_node])
    nodes = {host: _node_course(of_node[host], end, restarts) for host in hosts}
    ended = {host: _end_of_node(own, end) for host, own in of_node.items()}
    node_rows, rank_rows = _node_rows(nodes), _rank_rows(ranks, ended, restarts)
    moments = _moments(events)
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


# ---------------------------------------------------------------- one node, one rank


def _end_of_node(events: Sequence[Event], end: float) -> float:
    """Return when a node ended or was lost, else the end of the run."""
    over = [event.time for event in events if event.kind in ("ended", "lost")]
    return over[-1] if over else end


def _node_course(events: Sequence[Event], end: float, restarts: Sequence[float]) -> _Course:
    """Return the course of a node over all its attempts."""
    spans = _node_spans(events, end, restarts)
    return _Course([*spans, *_spans_away(events)], _node_marks(events))


def _end_of_attempt(start: float, end: float, restarts: Sequence[float]) -> float:
    """Return when something that began at `start` was over at the latest: at the next restart."""
    later = bisect_right(restarts, start)
    return restarts[later] if later < len(restarts) else end


_PHASE_AFTER: Mapping[str, Phase | None] = {
    "connected": Phase.PREPARING,
    "started": Phase.STARTING,
    "joined": Phase.RUNNING,
    "ended": None,
    "lost": None,
}


def _node_spans(events: Iterable[Event], end: float, restarts: Sequence[float]) -> Iterable[Span]:
    """Yield the phases of a node; None is none of them."""
    since, phase = 0.0, None
    for event in events:
        after = _PHASE_AFTER.get(event.kind, phase)
        is_late_start = phase is Phase.RUNNING and after is Phase.STARTING
        if after is phase or is_late_start:
            continue
        if phase is not None:
            yield Span(phase, since, _end_of_attempt(since, event.time, restarts))
        since, phase = event.time, after
    if phase is not None:
        yield Span(phase, since, max(_end_of_attempt(since, end, restarts), since))


def _spans_away(events: Iterable[Event]) -> Iterable[Span]:
    since: float | None = None
    for event in events:
        if event.kind == "away":
            since = event.time
        elif event.kind in ("back", "lost") and since is not None:
            yield Span(Phase.AWAY, since, event.time)
            since = None


_SIGN_OF: Mapping[str, Sign] = {
    "connected": Sign.CONNECTED,
    "shipped": Sign.SHIPPED,
    "joined": Sign.JOINED,
    "unstarted": Sign.FAILED,
    "lost": Sign.LOST,
}


def _node_marks(events: Iterable[Event]) -> list[Mark]:
    """Return the marks of a node; of failures the first, since the ranks have theirs."""
    marks: list[Mark] = []
    for event in events:
        is_failure = event.kind == "exit" and failed(event) and not event.asked
        sign = Sign.FAILED if is_failure else _SIGN_OF.get(event.kind)
        if sign is Sign.FAILED and any(mark.sign is Sign.FAILED for mark in marks):
            continue
        if sign is not None:
            marks.append(_mark(sign, event.time, event.error or ""))
    return marks


_OF_PROCESSES = frozenset({"started", "unstarted", "exit"})
"""The events that make the course of a rank."""


def _rank_spans(events: Sequence[Event], end: float, restarts: Sequence[float]) -> Iterable[Span]:
    """Yield when a rank was running, over all its attempts; `end`: the end of its node."""
    started: float | None = None
    for event in events:
        if event.kind == "started":
            if started is not None:  # its end in the attempt before is not known
                yield Span(Phase.RUNNING, started, _end_of_attempt(started, event.time, restarts))
            started = event.time
        elif event.kind == "exit":
            begin = event.time if started is None else started
            yield Span(Phase.RUNNING, min(begin, event.time), event.time)
            started = None
    if started is not None and end > started:
        yield Span(Phase.RUNNING, started, _end_of_attempt(started, end, restarts))


def _rank_sign(event: Event) -> tuple[Sign | None, str]:
    """Return the sign of an event of a rank and how a process ended; None: it has no mark."""
    if event.kind == "started":
        return None, ""
    if event.kind == "unstarted":
        return Sign.FAILED, event.error or ""
    if not failed(event):
        return Sign.SUCCEEDED, ""
    sign = Sign.STOPPED if event.asked else Sign.FAILED
    return sign, describe(event.code, event.signal)


def _mark(sign: Sign, at: float, text: str = "") -> Mark:
    return Mark(sign, at, at, at, text)


# ---------------------------------------------------------------- rows


def _node_rows(courses: Mapping[str, _Course]) -> tuple[Row, ...]:
    signatures = {host: course.signature for host, course in courses.items()}
    groups = _groups(signatures, MOST_SINGLE_NODES)
    rows = [
        _row(fold(hosts), _note(len(hosts), "node"), [courses[host] for host in hosts])
        for hosts in groups
    ]
    return tuple(_failed_first(rows, len(courses) > MOST_SINGLE_NODES))


def _rank_rows(
    of_rank: Mapping[tuple[str, int], Sequence[Event]],
    ended: Mapping[str, float],
    restarts: Sequence[float],
) -> tuple[Row, ...]:
    """Return the rows of ranks from their events; `ended`: when each node ended."""
    signatures = {
        source: tuple((event.kind, *_rank_sign(event)) for event in events)
        for source, events in of_rank.items()
    }
    rows = []
    for sources in _groups(signatures, MOST_SINGLE_RANKS):
        hosts = list(dict.fromkeys(host for host, _ in sources))
        name = "rank" if len(sources) == 1 else "ranks"
        label = f"{name} {fold_numbers(rank for _, rank in sources)}"
        note = fold(hosts) if len(hosts) == 1 else counted(len(hosts), "node")
        end = median(ended[host] for host, _ in sources)
        several = [of_rank[source] for source in sources]
        rows.append(_rank_row(label, note, several, end, restarts))
    return tuple(_failed_first(rows, len(of_rank) > MOST_SINGLE_RANKS))


def _rank_row(
    label: str,
    note: str,
    several: Sequence[Sequence[Event]],
    end: float,
    restarts: Sequence[float],
) -> Row:
    """Return one row for ranks with equal events, from the medians of the events' times."""
    typical: list[Event] = []
    marks: list[Mark] = []
    for equal in zip(*several, strict=True):
        times = [event.time for event in equal]
        middle = median(times)
        typical.append(replace(equal[0], time=middle))
        sign, text = _rank_sign(equal[0])
        if sign is not None:
            marks.append(Mark(sign, middle, min(times), max(times), text))
    return Row(label, note, tuple(_rank_spans(typical, end, restarts)), tuple(marks))


def _note(count: int, noun: str) -> str:
    return counted(count, noun) if count > 1 else ""


def _failed_first(rows: Iterable[Row], is_folded: bool) -> list[Row]:
    """Return folded rows with those that failed first; rows of single nodes keep their order."""
    return sorted(rows, key=lambda row: not row.has_failed) if is_folded else list(rows)


def _groups(signatures: Mapping[Key, object], most_single: int) -> list[list[Key]]:
    """Return the keys with equal courses together, in their order; few are not grouped."""
    if len(signatures) <= most_single:
        return [[key] for key in signatures]
    found: dict[object, list[Key]] = {}
    for key, signature in signatures.items():
        found.setdefault(signature, []).append(key)
    return list(found.values())


def _row(label: str, note: str, courses: Sequence[_Course]) -> Row:
    """Return one row for equal courses, with the medians of their times."""
    first = courses[0]
    spans = [
        replace(
            span,
            start=median(course.spans[i].start for course in courses),
            end=median(course.spans[i].end for course in courses),
        )
        for i, span in enumerate(first.spans)
    ]
    marks = []
    for i, mark in enumerate(first.marks):
        times = [course.marks[i].time for course in courses]
        marks.append(replace(mark, time=median(times), low=min(times), high=max(times)))
    return Row(label, note, tuple(spans), tuple(marks))


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


def _moments(events: Iterable[Event]) -> tuple[Moment, ...]:
    """Return equal events of an attempt together, by the time of the first."""
    groups: dict[tuple[int, str, bool], list[Event]] = {}
    attempt = 0
    for event in events:
        attempt += event.restart is not None
        if event.kind in _NOT_LISTED:
            continue
        text, is_failure = _moment_text(event), failed(event) and not event.asked
        groups.setdefault((attempt, text, is_failure), []).append(event)
    fold_once = cache(fold)  # most events are of the same nodes
    return tuple(
        Moment(
            first=own[0].time,
            last=own[-1].time,
            text=text,
            hosts=fold_once(tuple(sorted({e.host for e in own if e.host is not None}))),
            ranks=fold_numbers(event.rank for event in own if event.rank is not None),
            is_failure=is_failure,
        )
        for (_, text, is_failure), own in groups.items()
    )


def _moment_text(event: Event) -> str:
    """Return what happened, equal for equal events of several nodes."""
    if event.reason is not None:
        return f"{stop_text(event.reason)}; stopping"
    if event.restart is not None:
        return restart_text(event.restart)
    if event.kind == "exit":
        who = "launcher" if event.rank is None else "rank"
        while_stopping = ", after the stop" if event.asked else ""
        return f"{who} ended: {describe(event.code, event.signal)}{while_stopping}"
    if event.kind == "noticed":
        return f"{signal_name(event.signal or 0)} forwarded to all ranks"
    if event.hang is not None:
        return f"no collective completes: {hang_text(event.hang)}"
    if event.slower:
        return "; ".join(straggler_rows(event.slower))
    text = _MOMENTS.get(event.kind, event.kind)
    return f"{text}: {event.error}" if event.error else text


_MOMENTS: Mapping[str, str] = {
    "connected": "connected",
    "shipped": "files copied",
    "resent": "files sent by this machine, not by another node",
    "started": "process started",
    "unstarted": "could not start",
    "joined": "joined the process group",
    "away": "connection lost, reconnecting",
    "back": "reconnected",
    "continued": "collectives complete again",
    "lost": "node lost",
    "ending": "the node ends its part",
    "ended": "all processes of the node have exited",
}
