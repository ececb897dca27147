"""How long a run waits for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long things may take, in seconds."""

    grace: float = 10.0
    """Between asking a process to end and making it."""
    exit_timeout: float = 300.0
    """Between the first rank's good end and the last's."""
    heartbeat: float = 15.0
    """Without a sign of a node, or of the launcher, until the connection counts as broken."""
    reconnect: float = 20.0
    """In which a broken connection may be made anew before the node, or the run, is given up."""
    hang_timeout: float | None = None
    """Without output or computation of any rank until the run is ended; None: for ever."""
