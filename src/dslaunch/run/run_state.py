"""The states of a run, for all kinds of runs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from dslaunch.run.outcome import Outcome, Status


class State(StrEnum):
    """The state of a run. The values are codes of `--json`: they do not change."""

    ACTIVE = "active"
    """Its launcher is running, and no node reports it: it is starting or ending."""
    WAITING = "waiting"
    """In SLURM's queue."""
    RUNNING = "running"
    PARTLY_RUNNING = "partly-running"
    ORPHANED = "orphaned"
    """Processes of it are running although their agent has exited."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


_OVER: Mapping[Status, State] = {
    "ok": State.SUCCEEDED,
    "failed": State.FAILED,
    "interrupted": State.STOPPED,
}
ENDED = frozenset((*_OVER.values(), State.UNKNOWN))
"""States of a run that has ended, as far as is known."""


def state_after(outcome: Outcome | None) -> State:
    """Return the state of a run that is not running; None: its end was not recorded."""
    return State.UNKNOWN if outcome is None else _OVER[outcome.status]
