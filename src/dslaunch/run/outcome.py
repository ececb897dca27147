"""Why a run ended: the root cause among all endings. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from dslaunch.errors import NodeError
from dslaunch.run import endings
from dslaunch.run.endings import Diagnosis, diagnose
from dslaunch.run.events import Event
from dslaunch.run.hang_text import hang_hint
from dslaunch.run.outcome_text import message
from dslaunch.run.reasons import EndCode, EndReason, RankSource
from dslaunch.run.recorded_values import ExitCode, Host, RankNumber, Signal

Status = Literal["ok", "failed", "interrupted"]
MOST_AWAITED = 4
"""Ranks that a failed one may have waited for; if there are more, none of them is probable."""
SHOWN_LINES = 10
_NATIVE_FRAME = re.compile(r"frame #\d{1,4}: ")
"""Lines of the last output that are shown."""


class SecondaryFailure(Struct, frozen=True):
    """A rank that failed as a consequence of the root cause."""

    host: Host
    rank: RankNumber
    code: ExitCode | None = None
    signal: Signal | None = None
    ending: str | None = None
    """The code of the known ending."""
    what: str | None = None
    """What its last output means, if that is known."""


class Outcome(Struct, frozen=True):
    """How a run ended, and why."""

    status: Status
    exit_code: ExitCode
    reason: EndReason
    cause: Event | None = None
    """The root cause; None if nothing failed."""
    what: str | None = None
    """What that means, in one line, if that is known."""
    ending: str | None = None
    """The code of the known ending behind `what`."""
    ending_values: tuple[str, ...] = ()
    """The values of X and Y in the meaning of the ending."""
    hint: str | None = None
    last_lines: tuple[str, ...] = ()
    """The last output of the rank that failed first."""
    secondary: tuple[SecondaryFailure, ...] = ()
    """Ranks that failed as a consequence."""
    unconfirmed: tuple[str, ...] = ()
    """Nodes that did not confirm the cleanup."""
    left: tuple[str, ...] = ()
    """`host: pid` of processes that could not be killed."""
    stacks: Mapping[str, Any] = field(default_factory=dict)
    """The stacks of every rank when a hang was found: host -> rank -> stacks."""
    alike: tuple[RankSource, ...] = ()
    """Other ranks that failed for the same reason, and not as a consequence."""
    faulty: tuple[str, ...] = ()
    """Nodes that the next attempt should exclude; see `run.faulty`."""
    jobs: tuple[Mapping[str, Any], ...] = ()
    """Of a run that was a SLURM job: the verdict of each job, or of each task of its array."""
    nodes_checked: bool = True
    """Whether the cleanup was checked on the nodes; SLURM cleans up after its jobs."""

    def as_data(self) -> dict[str, Any]:
        """Return all fields, and the message, for JSON."""
        cause = self.cause.as_data() if self.cause is not None else None
        reason = {"reason": self.reason.as_data(), "message": self.message}
        fields: dict[str, Any] = to_builtins(replace(self, cause=None))
        return fields | {"cause": cause} | reason

    @property
    def message(self) -> str:
        """Return why it ended, in one line."""
        return message(self.reason)

    @property
    def goes_on(self) -> bool:
        """Whether this is a detached run that has started and is still running."""
        return self.reason.code is EndCode.RUNNING


JUDGED = ("started", "unstarted", "exit", "ending", "lost")
"""Kinds of events by which a run is judged."""


class History(Struct):
    """The events of a run, for the outcome at the end."""

    events: list[Event] = field(default_factory=list)
    """Those of the kinds in `JUDGED`: of others there are two for each node, in 0.5 KiB."""
    stopped_at: float | None = None
    stop: EndReason | None = None
    """Why the run was asked to stop: an interrupt, a command, output without a reader."""
    min_nodes: int | None = None
    """Of an elastic run: it continues with this many nodes, and its launcher handles the failures
    of ranks."""
    offloads: bool = False
    """Whether the DeepSpeed config keeps states in the nodes' memory."""
    gave_up: EndReason | None = None
    """Why the supervisor stopped the run, such as ranks that did not exit."""
    started: set[str] = field(default_factory=set)
    """The nodes that have started processes."""
    gone: set[str] = field(default_factory=set)
    """The nodes that were lost, or whose launcher has failed."""
    ended: dict[RankSource, tuple[int | None, int | None]] = field(default_factory=dict)
    """The ranks that have exited, and were not started again, with their exit code and signal."""

    def __post_init__(self) -> None:
        for event in self.events:
            self._count(event)

    def note(self, event: Event) -> None:
        """Add an event. What an elastic run needs at each failure is counted here."""
        if event.kind in JUDGED:
            self.events.append(event)
        self._count(event)

    def still_running(self) -> tuple[RankSource, ...]:
        """Return the ranks that were started and have not exited, by rank."""
        exited = {(e.host, e.rank) for e in self.events if e.kind == "exit"}
        started = {(e.host or "", e.rank) for e in self.events if e.kind == "started"}
        running = (source for source in started - exited if source[1] is not None)
        return tuple(sorted(running, key=_rank_of))

    def _count(self, event: Event) -> None:
        if event.host is None:
            return
        source = (event.host, event.rank)
        if event.kind == "started":
            self.started.add(event.host)
            self.ended.pop(source, None)
        if event.kind == "exit" and event.rank is not None:
            self.ended[source] = event.code, event.signal
        if failed(event) and (event.kind == "lost" or event.rank is None):
            self.gone.add(event.host)


def failed(event: Event) -> bool:
    """Return whether this event alone makes the run fail."""
    if event.kind == "exit":
        return bool(event.code) or event.signal is not None
    return event.kind in ("unstarted", "lost") or _own_process_ended(event)


def _own_process_ended(event: Event) -> bool:
    """Return whether a node ends its part because a process of ours was killed there."""
    return event.kind == "ending" and event.process is not None


def root_cause(events: list[Event], why: Mapping[RankSource, Diagnosis]) -> Event | None:
    """Return the first failure by time that is no consequence of another; else the first.

    The exit of a rank tells more than that of its launcher, which only passes it on, so the
    launcher's counts only if no rank of any node failed. A consequence may have the earlier time:
    nodes' clocks, however corrected, differ by more than the milliseconds in which a connection
    breaks.
    """
    failures = sorted(filter(failed, events), key=lambda e: e.time)
    of_ranks = [e for e in failures if e.rank is not None or e.kind != "exit"] or failures
    primary = [e for e in of_ranks if not (e.kind == "exit" and _why(e, why).secondary)]
    return next(iter(primary or of_ranks), None)


def judge(history: History, *, last_lines: Mapping[RankSource, list[str]]) -> Outcome:
    """Return how the run ended. `last_lines`: the last output of each rank."""
    why = _diagnoses(history, last_lines)
    unasked = [e for e in history.events if _is_unasked(e, history.stopped_at)]
    cause = _behind(root_cause(unasked, why), history, why)
    if history.stop is not None and not _came_first(cause, history.stopped_at):
        return Outcome("interrupted", 130, history.stop)
    if cause is None:
        return _without_failure(history)
    succeeded = _nodes_succeeded(unasked)
    if history.min_nodes is not None and succeeded >= history.min_nodes:
        return Outcome("ok", 0, EndReason(EndCode.ENOUGH_SUCCEEDED, nodes=succeeded))
    return _failed(cause, unasked, history, why, last_lines)


def _diagnoses(
    history: History, last_lines: Mapping[RankSource, list[str]]
) -> dict[RankSource, Diagnosis]:
    """Return one diagnosis for each rank, however often a node reports that it failed."""
    failures = {_source(event): event for event in filter(failed, history.events)}
    return {
        source: _diagnosis(event, last_lines.get(source, []), offloads=history.offloads)
        for source, event in failures.items()
    }


def _without_failure(history: History) -> Outcome:
    reason = history.gave_up
    if reason is not None and reason.code is EndCode.REHEARSED:
        return Outcome("ok", 0, reason)
    if reason is not None:
        hint = hang_hint(reason.hang) if reason.hang is not None else None
        return Outcome("failed", 1, reason, hint=hint)
    return Outcome("ok", 0, EndReason(EndCode.SUCCEEDED))


def _failed(
    cause: Event,
    events: list[Event],
    history: History,
    why: Mapping[RankSource, Diagnosis],
    last_lines: Mapping[RankSource, list[str]],
) -> Outcome:
    """Return the outcome of a run that failed by this cause; `events`: all that was not asked
    for."""
    found = _why(cause, why)
    others = [e for e in events if _source(e) != _source(cause) and _is_rank_failure(e)]
    alike = {_source(e) for e in others if _alike(e, cause, why)}
    return Outcome(
        status="failed",
        exit_code=_code(cause, history.events),
        reason=replace(
            reason_of(cause),
            ranks=_awaited(found, history, why),
            exited=_exited_before(cause, found, history),
        ),
        cause=_with_process(cause, history),
        what=found.what,
        ending=found.code,
        ending_values=found.values,
        hint=found.advice,
        last_lines=_without_native_frames(last_lines.get(_source(cause), []))[-SHOWN_LINES:],
        alike=tuple(sorted(alike, key=_rank_of)),
        secondary=tuple(_secondary(e, why) for e in others if _source(e) not in alike),
    )


def _without_native_frames(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines without the stack that PyTorch prints below an exception of native code:
    some thirty lines, in front of which the reason is."""
    return tuple(line for line in lines if not _NATIVE_FRAME.match(line))


def _with_process(cause: Event, history: History) -> Event:
    """Return the cause with the process of its rank, which only the start of it names."""
    starts = [e for e in history.events if e.kind == "started" and _source(e) == _source(cause)]
    return replace(cause, pid=starts[-1].pid) if starts and cause.pid is None else cause


def _rank_of(source: RankSource) -> int:
    _, rank = source
    return rank or 0


def _source(event: Event) -> RankSource:
    return event.host or "", event.rank


def _diagnosis(event: Event, lines: Sequence[str], *, offloads: bool) -> Diagnosis:
    found = diagnose(lines, event.evidence)
    return endings.killed_while_offloading(found, event.signal) if offloads else found


def _alike(event: Event, cause: Event, why: Mapping[RankSource, Diagnosis]) -> bool:
    """Return whether a rank failed in the same way as the cause: one cause on many ranks, of which
    none is a consequence of another. Two that exited with 1 and wrote nothing are not alike."""
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
    """Return the cause, or the loss of the node that caused it: that may be noticed only while the
    run is stopped, since the other ranks find out by their own connections, and sooner."""
    if cause is None or cause.kind != "exit" or not _why(cause, why).secondary:
        return cause
    return next((e for e in history.events if e.kind == "lost" and e.host != cause.host), cause)


def fatal(event: Event, history: History) -> bool:
    """Return whether this event must end the run. An elastic one continues without some nodes."""
    if history.min_nodes is None or not failed(event):
        return failed(event)
    if event.kind == "exit" and event.rank is not None:
        return False
    return len(history.started - history.gone) < history.min_nodes


def _nodes_succeeded(events: list[Event]) -> int:
    """Return on how many nodes the launcher exited with 0."""
    return sum(e.kind == "exit" and e.rank is None and e.code == 0 for e in events)


def _why(event: Event, why: Mapping[RankSource, Diagnosis]) -> Diagnosis:
    return why.get((event.host or "", event.rank), Diagnosis())


def _is_rank_failure(event: Event) -> bool:
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
    """Return the ranks that a rank probably waited for: those that had not exited by then and did
    not wait themselves."""
    if not found.waited:
        return ()
    exits = (e for e in history.events if e.kind == "exit" and not e.asked)
    starts = (e for e in history.events if e.kind == "started" and e.rank is not None)
    waited_too = {source for source, diagnosis in why.items() if diagnosis.secondary}
    candidates = set(map(_source, starts)) - set(map(_source, exits)) - waited_too
    if len(candidates) > MOST_AWAITED:
        return ()
    return tuple(sorted(candidates, key=_rank_of))


def _exited_before(cause: Event, found: Diagnosis, history: History) -> tuple[RankSource, ...]:
    """Return the ranks that had exited successfully when another one lost its connection: one that
    returns early breaks the connections to it."""
    if not found.secondary or found.waited:
        return ()
    exited = {
        _source(event)
        for event in history.events
        if _exited_successfully(event) and event.time <= cause.time
    }
    return tuple(sorted(exited, key=_rank_of)) if len(exited) <= MOST_AWAITED else ()


def _exited_successfully(event: Event) -> bool:
    is_of_rank = event.kind == "exit" and event.rank is not None
    return is_of_rank and not event.asked and event.code == 0 and event.signal is None


def _is_unasked(event: Event, stopped_at: float | None) -> bool:
    """Return whether an event came before we began to stop the run: all later ones are
    consequences of that, whatever they look like.

    For exits the node's agent reports it: a clock, however corrected, may be off by more than the
    few milliseconds between a cause and its consequences.
    """
    if event.kind == "exit":
        return not event.asked
    return stopped_at is None or event.time <= stopped_at


def _came_first(cause: Event | None, stopped_at: float | None) -> bool:
    """Return whether there was a cause before the run was stopped."""
    if cause is None:
        return False
    return stopped_at is None or cause.time < stopped_at


def _code(cause: Event, events: list[Event]) -> int:
    """Return the exit code of a run that failed; docs/reference/exit-codes.md lists them."""
    if cause.kind == "unstarted":
        return 127
    if cause.kind in ("lost", "ending"):
        return NodeError.exit_code
    if cause.code is None and cause.signal is None:  # noticed too late: its launcher passes it on
        passed = [e for e in events if e.kind == "exit" and e.host == cause.host and e.rank is None]
        return endings.exit_code(passed[0].code, passed[0].signal) if passed else 1
    return endings.exit_code(cause.code, cause.signal)


def reason_of(cause: Event) -> EndReason:
    """Return the reason of a run that ends by this event."""
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
