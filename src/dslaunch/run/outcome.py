"""Why a run ended: the first cause among all endings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dslaunch.run import endings
from dslaunch.run.events import Event

Status = Literal["ok", "failed", "interrupted"]
FAILURES = ("exit", "unstarted", "lost", "stopping")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, and why."""

    status: Status
    exit_code: int
    cause: Event | None = None
    """The event that came first; None if nothing failed."""
    message: str = ""
    hint: str | None = None
    last_lines: tuple[str, ...] = ()
    """What the failing rank wrote last."""
    unconfirmed: tuple[str, ...] = ()
    """Nodes that did not say that nothing of the run is left there."""
    left: tuple[str, ...] = ()
    """`host: pid` of processes that could not be ended."""
    stacks: Mapping[str, Any] = field(default_factory=dict)
    """What every rank was doing when the run was ended for a hang: host -> rank -> stacks."""


@dataclass(slots=True)
class History:
    """What the supervisor saw, for the judgement at the end."""

    events: list[Event] = field(default_factory=list)
    stopped_at: float | None = None
    interrupted: bool = False
    stopped_by: str | None = None
    """Who else asked the run to stop."""
    timed_out: str | None = None
    """Why the supervisor itself ended the run, such as ranks that would not exit."""


def failed(event: Event) -> bool:
    """Whether this event alone makes the run fail."""
    if event.kind == "exit":
        return bool(event.code) or event.signal is not None
    return event.kind in ("unstarted", "lost")


def first_cause(events: list[Event]) -> Event | None:
    """The first failure by time. A rank's own ending says more than its launcher's, which only
    passes it on, so the launcher's counts only if no rank of any node failed."""
    failures = sorted(filter(failed, events), key=lambda e: e.time)
    own = [e for e in failures if e.rank is not None or e.kind != "exit"]
    return next(iter(own or failures), None)


def judge(history: History, *, last_lines: dict[tuple[str, int | None], list[str]]) -> Outcome:
    """Say how the run ended."""
    before = [e for e in history.events if _not_our_doing(e, history.stopped_at)]
    cause = first_cause(before)
    if history.interrupted and (cause is None or not _came_first(cause, history.stopped_at)):
        by = history.stopped_by
        return Outcome("interrupted", 130, message=f"stopped by {by}" if by else "interrupted")
    if cause is None and history.timed_out is not None:
        return Outcome("failed", 1, message=history.timed_out)
    if cause is None:
        return Outcome("ok", 0, message="all ranks ended well")
    lines = last_lines.get((cause.host or "", cause.rank), [])
    return Outcome(
        "failed",
        _code(cause, history.events),
        cause=cause,
        message=_message(cause),
        hint=endings.hint(lines),
        last_lines=tuple(lines[-10:]),
    )


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
    if cause.kind == "lost":
        return 5
    if cause.code is None and cause.signal is None:  # seen too late: its launcher passes it on
        passed = [e for e in events if e.kind == "exit" and e.host == cause.host and e.rank is None]
        return endings.exit_code(passed[0].code, passed[0].signal) if passed else 1
    return endings.exit_code(cause.code, cause.signal)


def _message(cause: Event) -> str:
    who = f"{cause.host}" if cause.rank is None else f"rank {cause.rank} on {cause.host}"
    if cause.kind == "unstarted":
        return f"{who} could not start: {cause.text}"
    if cause.kind == "lost":
        return f"{cause.host} was lost: {cause.text}"
    return f"{who} failed first: {endings.describe(cause.code, cause.signal)}"
