"""The timeouts of a run."""

from __future__ import annotations

from msgspec import Struct

from dslaunch.errors import ErrorCode, UsageError

LONGEST_TIMEOUT = 1_000_000.0
"""Seconds, 11 days: the maximum of each timeout. poll(2) counts milliseconds in 32 bits, which end
after 24 days; infinity is no number in JSON, which the nodes are sent."""
REHEARSAL_STALL = 10.0
"""Seconds without progress in a rehearsal after which it is asked what the ranks wait for, and then
again after as long: it ends at once if others wait for a rank that is held, or if the ranks are
blocked forever."""


class Timeouts(Struct, frozen=True):
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

    def check(self) -> None:
        """Raise UsageError for a timeout that is not a number of seconds, or too long."""
        check_timeout("grace", self.grace)
        check_timeout("exit_timeout", self.exit_timeout)
        check_timeout("heartbeat_timeout", self.heartbeat)
        check_timeout("reconnect_timeout", self.reconnect)
        check_timeout("hang_timeout", self.hang_timeout)


def check_timeout(name: str, seconds: float | None) -> None:
    """Raise UsageError for a timeout that is not a number of seconds, or too long; None is no
    timeout."""
    if seconds is None or 0 <= seconds <= LONGEST_TIMEOUT:
        return
    raise UsageError.coded(
        ErrorCode.INVALID_OPTION,
        option=name,
        expected=f"0 to {LONGEST_TIMEOUT:,.0f} seconds",
        value=f"{seconds:g}",
        example=f"{name}=600",
    )


DEFAULTS = Timeouts()
"""Those of a run for which none is set."""
REHEARSAL_DEFAULTS = Timeouts(hang_timeout=120.0)
"""Those of a rehearsal for which none is set."""
