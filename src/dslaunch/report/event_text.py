"""The texts of a run's events. Pure."""

from __future__ import annotations

from dslaunch.cluster.nodeset import fold_numbers
from dslaunch.durations import elapsed_text
from dslaunch.plural import counted
from dslaunch.report.straggler_text import straggler_rows
from dslaunch.run.events import Event
from dslaunch.run.exit_text import describe, signal_name
from dslaunch.run.hang_text import hang_text
from dslaunch.run.outcome import SecondaryFailure
from dslaunch.run.outcome_text import restart_text, stop_text
from dslaunch.run.reasons import EndCode, EndReason


def event_text(event: Event) -> str | None:
    """Return what is shown at once of an event; None: the progress line and the outcome show it."""
    if event.reason is not None:
        return f"{stop_text(event.reason)}; {_stopping(event, event.reason)}"
    if event.restart is not None:
        return restart_text(event.restart)
    if event.kind == "away":
        return f"{event.host}: {event.error}; reconnecting"
    if event.kind == "back":
        after = event.seconds or 0.0
        return f"{event.host}: reconnected after {after:.0f} s; no output was lost"
    if event.kind == "resent":
        return (
            f"{event.receivers}: files sent by this machine, not by {event.senders}: "
            f"{event.failure}"
        )
    if event.kind == "noticed":
        return _forwarded_text(event)
    if event.kind == "stalled" and event.hang is not None:
        return (
            f"no collective has completed for {event.seconds or 0:.0f} s: {hang_text(event.hang)}"
        )
    if event.kind == "continued":
        return f"collectives complete again, after {elapsed_text(event.seconds or 0)}"
    if event.slower:
        return "; ".join(straggler_rows(event.slower))
    return None


def _forwarded_text(event: Event) -> str:
    name = signal_name(event.signal or 0)
    if not event.unhandled:
        return f"{name} received and forwarded to all ranks"
    without = f"no handler: ranks {fold_numbers(event.unhandled)}"
    if not event.sent:
        return f"{name} received and not forwarded, since it would end the ranks; {without}"
    return f"{name} received and forwarded to {counted(event.sent, 'rank')}; {without}"


def _stopping(event: Event, reason: EndReason) -> str:
    """Return what is stopped, how long that may take, and what a second Ctrl-C does."""
    what = "all nodes"
    if event.ranks and event.nodes:
        what = f"{counted(event.ranks, 'rank')} on {counted(event.nodes, 'node')}"
    if event.seconds == 0:
        return f"killing {what}"
    parts = [f"stopping {what}"]
    if event.seconds is not None:
        parts.append(f"up to {elapsed_text(event.seconds)}")
    if event.seconds is not None and reason.code is EndCode.INTERRUPTED:
        parts.append("Ctrl-C again kills them")
    return "; ".join(parts)


def secondary_text(failure: SecondaryFailure) -> str:
    """Return how a rank failed as a consequence of the root cause."""
    return failure.what or describe(failure.code, failure.signal)
