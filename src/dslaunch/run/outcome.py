"""Why a run ended: the root cause among all endings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from dslaunch.run import endings
from dslaunch.run.endings import Diagnosis, diagnose
from dslaunch.run.events import Event
from dslaunch.run.outcome_text import message
from dslaunch.run.reasons import EndCode, EndReason, RankSource

Status = Literal["ok", "failed", "interrupted"]
MOST_AWAITED = 4
"""Ranks that a failed one may have waited for; if there are more, none of them is likely."""


@dataclass(frozen=True, slots=True)
class SecondaryFailure:
    """A rank that failed as a consequence of the root cause."""

    host: str
    rank: int
    code: int | None = None
    signal: int | None = None
    ending: str | None = None
    """The code of the known ending."""
    what: str | None = None
    """What its last lines tell, where that is known."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, and why."""

    status: Status
    exit_code: int
    reason: EndReason
    cause: Event | None = None
    """The event that came first; None if nothing failed."""
    what: str | None = None
    """What that means, in a line, where it is known."""
    ending: str | None = None
    """The code of the known ending that `what` tells."""
    ending_values: tuple[str, ...] = ()
    """What stands for X and Y in the meaning of the ending."""
    hint: str | None = None
    last_lines: tuple[str, ...] = ()
    """What the failing rank wrote last."""
    secondary: tuple[SecondaryFailure, ...] = ()
    """Ranks that failed because of it."""
    unconfirmed: tuple[str, ...] = ()
    """Nodes that did not say that nothing of the run is left there."""
    left: tuple[str, ...] = ()
    """`host: pid` of processes that could not be ended."""
    stacks: Mapping[str, Any] = field(default_factory=dict)
    """What every rank was doing when the run was ended for a hang: host -> rank -> stacks."""
    alike: tuple[RankSource, ...] = ()
    """Other ranks that failed by themselves, for the same reason."""
    faulty: tuple[str, ...] = ()
    """Nodes that should take no part in a next attempt; see `run.faulty`."""
    jobs: tuple[Mapping[str, Any], ...] = ()
    """Of a run that was a SLURM job: the verdict of each job, or of each task of its array."""
    nodes_checked: bool = True
    """Whether the nodes were asked what is left there; a job of SLURM is cleaned up by SLURM."""

    def as_dict(self) -> dict[str, Any]:
        """All fields, and the message, for JSON."""
        cause = self.cause.as_dict() if self.cause is not None else None
        reason = {"reason": self.reason.as_dict(), "message": self.message}
        return asdict(replace(self, cause=None)) | {"cause": cause} | reason

    @property
    def message(self) -> str:
        """Why it ended, in one line."""
        return message(self.reason)

    @property
    def goes_on(self) -> bool:
        """Whether this is a detached run that has started well and is not over."""
        return self.reason.code is EndCode.RUNNING


@dataclass(slots=True)
class History:
    """What the supervisor saw, for the judgement at the end."""

    events: list[Event] = field(default_factory=list)
    stopped_at: float | None = None
    interrupted: bool = False
    stopped_by: str | None = None
    """Who else asked the run to stop."""
    least: int | None = None
    """An elastic run goes on with so few nodes; its ranks' failures are its launcher's affair."""
    offloads: bool = False
    """The DeepSpeed config keeps states in the nodes' memory."""
    gave_up: EndReason | None = None
    """Why the supervisor itself ended the run, such as ranks that would not exit."""
    started: set[str] = field(default_factory=set)
    """The nodes that have started something."""
    gone: set[str] = field(default_factory=set)
    """Those that were lost, or whose launcher has failed."""

    def __post_init__(self) -> None:
        for event in self.events:
            self._count(event)

    def note(self, event: Event) -> None:
        """Add an event. What an elastic run asks at each failure is counted, not looked up."""
        self.events.append(event)
        self._count(event)

    def still_there(self) -> tuple[RankSource, ...]:
        """The ranks that were started and have not exited, by rank."""
        gone = {(e.host, e.rank) for e in self.events if e.kind == "exit"}
        started = {(e.host or "", e.rank) for e in self.events if e.kind == "started"}
        there = (source for source in started - gone if source[1] is not None)
        return tuple(sorted(there, key=lambda source: source[1] or 0))

    def _count(self, event: Event) -> None:
        if event.host is None:
            return
        if event.kind == "started":
            self.started.add(event.host)
        if failed(event) and (event.kind == "lost" or event.rank is None):
            self.gone.add(event.host)


def failed(event: Event) -> bool:
    """Whether this event alone makes the run fail."""
    if event.kind == "exit":
        return bool(event.code) or event.signal is not None
    return event.kind in ("unstarted", "lost") or _own_process_ended(event)


def _own_process_ended(event: Event) -> bool:
    """Whether a node ends its part because somebody ended a process of ours there."""
    return event.kind == "ending" and event.process is not None


def first_cause(events: list[Event], why: Mapping[RankSource, Diagnosis]) -> Event | None:
    """The first failure by time that is no victim of another; else the first.

    A rank's own ending says more than its launcher's, which only passes it on, so the launcher's
    counts only if no rank of any node failed. A victim may be seen first: nodes' clocks, however
    corrected, differ by more than the milliseconds in which a connection breaks.
    """
    failures = sorted(filter(failed, events), key=lambda e: e.time)
    own = [e for e in failures if e.rank is not None or e.kind != "exit"] or failures
    culprits = [e for e in own if not (e.kind == "exit" and _why(e, why).victim)]
    return next(iter(culprits or own), None)


def judge(history: History, *, last_lines: Mapping[RankSource, list[str]]) -> Outcome:
    """Say how the run ended."""
    before = [e for e in history.events if _not_our_doing(e, history.stopped_at)]
    # one diagnosis of each rank, however often a node says that it failed
    failures = {_source(e): e for e in filter(failed, history.events)}
    why = {
        source: _diagnosis(event, last_lines.get(source, []), offloads=history.offloads)
        for source, event in failures.items()
    }
    cause = _behind(first_cause(before, why), history, why)
    if history.interrupted and (cause is None or not _came_first(cause, history.stopped_at)):
        by = history.stopped_by
        code = EndCode.STOPPED if by else EndCode.INTERRUPTED
        return Outcome("interrupted", 130, EndReason(code, by=by))
    if cause is None and history.gave_up is not None:
        return Outcome("failed", 1, history.gave_up)
    if cause is None:
        return Outcome("ok", 0, EndReason(EndCode.SUCCEEDED))
    if history.least is not None and _ended_well(before) >= history.least:
        return Outcome("ok", 0, EndReason(EndCode.ENOUGH_SUCCEEDED, nodes=_ended_well(before)))
    found = _why(cause, why)
    others = [e for e in before if _source(e) != _source(cause) and _is_victim(e)]
    alike = {_source(e): e for e in others if _alike(e, cause, why)}
    return Outcome(
        "failed",
        _code(cause, history.events),
        replace(reason_of(cause), ranks=_awaited(found, history, why)),
        cause=cause,
        what=found.what,
        ending=found.code,
        ending_values=found.values,
        hint=found.advice,
        last_lines=tuple(last_lines.get((cause.host or "", cause.rank), [])[-10:]),
        alike=tuple(sorted(alike, key=lambda source: source[1] or 0)),
        secondary=tuple(_secondary(e, why) for e in others if _source(e) not in alike),
    )


def _source(event: Event) -> RankSource:
    return event.host or "", event.rank


def _diagnosis(event: Event, lines: Sequence[str], *, offloads: bool) -> Diagnosis:
    found = diagnose(lines, event.evidence)
    return endings.killed_while_offloading(found, event.signal) if offloads else found


def _alike(event: Event, cause: Event, why: Mapping[RankSource, Diagnosis]) -> bool:
    """Whether a rank failed in the same way as the cause: one cause on many ranks, of which none
    is a consequence of another. Nothing is known of two that exited with 1 and said nothing."""
    if cause.rank is None or cause.kind != "exit":
        return False
    if (event.code, event.signal) != (cause.code, cause.signal):
        return False
    mine, first = _why(event, why), _why(cause, why)
    if mine.code or first.code:
        return mine.code == first.code
    return mine.what == first.what and bool(mine.what or event.signal)


def _behind(
    cause: Event | None, history: History, why: Mapping[RankSource, Diagnosis]
) -> Event | None:
    """A victim's cause may be a node whose loss was noticed only while the run was ended: its peers
    hear of it by their own connections, and sooner than we do."""
    if cause is None or cause.kind != "exit" or not _why(cause, why).victim:
        return cause
    return next((e for e in history.events if e.kind == "lost" and e.host != cause.host), cause)


def fatal(event: Event, history: History) -> bool:
    """Whether this event must end the run. An elastic one bears the loss of some nodes."""
    if history.least is None or not failed(event):
        return failed(event)
    if event.kind == "exit" and event.rank is not None:
        return False
    return len(history.started - history.gone) < history.least


def _ended_well(events: list[Event]) -> int:
    """On how many nodes the launcher ended with 0."""
    return sum(e.kind == "exit" and e.rank is None and e.code == 0 for e in events)


def _why(event: Event, why: Mapping[RankSource, Diagnosis]) -> Diagnosis:
    return why.get((event.host or "", event.rank), Diagnosis())


def _is_victim(event: Event) -> bool:
    return failed(event) and event.kind == "exit" and event.rank is not None


def _secondary(event: Event, why: Mapping[RankSource, Diagnosis]) -> SecondaryFailure:
    found = _why(event, why)
    return SecondaryFailure(
        host=event.host or "",
        rank=event.rank or 0,
        code=event.code,
        signal=event.signal,
        ending=found.code,
        what=found.what,
    )


def _awaited(
    found: Diagnosis, history: History, why: Mapping[RankSource, Diagnosis]
) -> tuple[RankSource, ...]:
    """Whom a rank waited for in vain: those that had not ended by then and did not wait too."""
    if not found.waited:
        return ()
    gone = {_source(e) for e in history.events if e.kind == "exit" and not e.asked}
    gone |= {source for source, told in why.items() if told.victim}
    here = {_source(e) for e in history.events if e.kind == "started" and e.rank is not None}
    names = sorted(here - gone, key=lambda source: source[1] or 0)
    return tuple(names) if len(names) <= MOST_AWAITED else ()


def _not_our_doing(event: Event, stopped_at: float | None) -> bool:
    """What came after we began to end the run is its consequence, whatever it looks like.

    For exits the node's own agent says so: a clock, however corrected, may be off by more than
    the few milliseconds between a cause and its victims.
    """
    if event.kind == "exit":
        return not event.asked
    return stopped_at is None or event.time <= stopped_at


def _came_first(cause: Event, stopped_at: float | None) -> bool:
    return stopped_at is None or cause.time < stopped_at


def _code(cause: Event, events: list[Event]) -> int:
    if cause.kind == "unstarted":
        return 127
    if cause.kind in ("lost", "ending"):
        return 5
    if cause.code is None and cause.signal is None:  # seen too late: its launcher passes it on
        passed = [e for e in events if e.kind == "exit" and e.host == cause.host and e.rank is None]
        return endings.exit_code(passed[0].code, passed[0].signal) if passed else 1
    return endings.exit_code(cause.code, cause.signal)


def reason_of(cause: Event) -> EndReason:
    """Return why a run ends that ends by this event."""
    found = EndReason(
        _end_code(cause),
        cause.host,
        cause.rank,
        exit_code=cause.code,
        signal=cause.signal,
        process=cause.process,
        failure=cause.failure,
        error=cause.error,
    )
    oom = bool(cause.evidence and cause.evidence.oom)
    return replace(found, oom=True) if oom else found


def _end_code(cause: Event) -> EndCode:
    if cause.kind == "unstarted":
        return EndCode.START_FAILED
    if cause.process is not None:
        failed_itself = cause.signal is None and cause.trace is not None
        return EndCode.PROCESS_FAILED if failed_itself else EndCode.PROCESS_KILLED
    if cause.kind == "lost":
        return EndCode.NODE_LOST
    return EndCode.LAUNCHER_FAILED if cause.rank is None else EndCode.RANK_FAILED
