"""The texts of a run's events, for those who watch it. Pure."""

from __future__ import annotations

from dslaunch.run.events import Event
from dslaunch.run.outcome import SecondaryFailure
from dslaunch.run.outcome_text import (
    describe,
    restart_text,
    signal_name,
    source_text,
    stop_text,
)


def event_text(event: Event) -> str | None:
    """Return what is said at once of an event; None: the progress line and the outcome say it."""
    if event.reason is not None:
        return f"{stop_text(event.reason)}; ending all nodes"
    if event.restart is not None:
        return restart_text(event.restart)
    if event.kind == "away":
        return f"{event.host}: {event.error}; trying to reach it again"
    if event.kind == "back":
        after = event.seconds or 0.0
        return f"{event.host}: connected again after {after:.0f} s, nothing was missed"
    if event.kind == "noticed":
        return f"{signal_name(event.signal or 0)} received and sent to all ranks"
    return None


def secondary_text(failure: SecondaryFailure) -> str:
    """Return which rank failed because of the root cause, and how."""
    how = failure.what or describe(failure.code, failure.signal)
    return f"{source_text((failure.host, failure.rank))}: {how}"
