"""For how long ranks wait for a CPU while there is no progress, for launchers and for the nodes of
detached runs, which judge hangs alike. Pure.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, Mapping

MOST_STARVED = 3
"""By which factor a timeout is longer, at most, while ranks wait for a CPU."""


class CpuWaits:
    """For how long ranks have waited for a CPU since the last progress.

    A rank that competes with other programs for the CPUs of its node computes slowly, and does not
    hang. Time for which it was ready to run and did not is not its own.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        """Of the rank that has waited longest."""
        self._before: Dict[Any, float] = {}
        self._waits: Dict[Any, float] = {}
        """Of each rank. A node whose ranks wait for a CPU is also late to answer: what it told
        before still holds."""

    def take(self, waited: Mapping[Any, float], *, progress: bool) -> None:
        """Add the waits of ranks, in seconds since their start. `progress`: whether there was some
        since the last call."""
        if progress:
            self._before, self._waits = {}, {}
        for rank, seconds in waited.items():
            self._waits[rank] = seconds - self._before.setdefault(rank, seconds)
        self.seconds = max(self._waits.values(), default=0.0)

    def own(self, seconds: float) -> float:
        """Return how many of the seconds since the last progress count."""
        return max(seconds - self.seconds, seconds / MOST_STARVED)
