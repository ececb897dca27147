"""The timeouts of a run."""

from __future__ import annotations

from dataclasses import dataclass

REHEARSAL_STALL = 10.0
"""Seconds without progress in a rehearsal after which it is asked what the ranks wait for, and then
again after as long: it ends at once if others wait for a rank that is held, or if the ranks are
blocked forever."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The timeouts of a run, in seconds."""

    grace: float = 10.0
    """Between TERM and KILL."""
    exit_timeout: float = 300.0
    """For the other ranks to exit after the first one has exited successfully."""
    heartbeat: float = 15.0
    """Heartbeat timeout: without contact, after which a connection counts as lost."""
    reconnect: float = 20.0
    """For reconnecting, before the node, or the run, is given up."""
    hang_timeout: float | None = None
    """Without progress of any rank (`hang_watch.py`), before the run is stopped; None: no limit."""


DEFAULTS = Timeouts()
"""Those of a run for which none is set."""
REHEARSAL_DEFAULTS = Timeouts(hang_timeout=120.0)
"""Those of a rehearsal for which none is set."""
