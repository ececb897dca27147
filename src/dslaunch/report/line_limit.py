"""How many lines of a run are shown in a second, and how many were not. Pure."""

from __future__ import annotations

MOST_SHOWN = 20_000
"""Lines of a run in a second that are shown where equal ones are folded: each takes 16 us of CPU,
and ranks whose output is not taken in time wait."""
NOTE_INTERVAL = 10.0
"""Seconds between two notes about lines that were not shown."""


class LineLimit:
    """Counts the lines that are shown in each second of a clock, and those that are not."""

    def __init__(self) -> None:
        self._second = 0
        """The present second of the clock."""
        self._shown = 0
        """Lines that were shown in it."""
        self._left_out = 0
        """Lines that were not shown since the last note about them."""
        self._noted_at = 0.0

    def allows(self, count: int, *, now: float, always: bool) -> bool:
        """Count lines, and return whether they are shown: `always`, or as long as there are not too
        many in this second."""
        if int(now) != self._second:
            self._second, self._shown = int(now), 0
        if always or self._shown < MOST_SHOWN:
            self._shown += count
            return True
        self._left_out += count
        return False

    def is_note_due(self, now: float) -> bool:
        """Return whether it is time for a note about lines that were not shown."""
        return now - self._noted_at >= NOTE_INTERVAL

    def take_left_out(self, now: float) -> int:
        """Return how many lines were not shown since this was asked last."""
        left_out, self._left_out, self._noted_at = self._left_out, 0, now
        return left_out
