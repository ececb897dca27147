"""By how much a node's clock is ahead of ours, and how exactly that is known."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

DRIFT = 50e-6
"""Seconds per second by which two clocks may drift apart: quartz crystals are specified for 20 to
50 ppm."""


@dataclass(frozen=True, slots=True)
class Clock:
    """How far a node's clock is ahead of ours, in seconds."""

    offset: float
    error: float
    """By how much that may be wrong: half of the round trip in which it was measured."""

    @classmethod
    def compared(cls, node_time: float, *, round_trip: float) -> Clock:
        """Return how a node's clock compares with ours, by a message with its time that has just
        arrived. `round_trip`: of that and the message before, in seconds."""
        half = round_trip / 2
        return cls(node_time - (time.time() - half), half)


class MeasuredClock:
    """The best measurement of a node's clock, which becomes less exact with time."""

    __slots__ = ("_best", "_measured_at")

    def __init__(self) -> None:
        self._best = Clock(offset=0.0, error=math.inf)
        """With an infinite error until something was measured."""
        self._measured_at = 0.0
        """On the monotonic clock."""

    @property
    def offset(self) -> float:
        """How far the node's clock is ahead, in seconds; 0.0: nothing was measured."""
        return self._best.offset

    @property
    def error(self) -> float:
        """By how many seconds `offset` may be wrong now; infinite: nothing was measured."""
        return self._best.error + DRIFT * (time.monotonic() - self._measured_at)

    def known(self) -> Clock | None:
        """Return the measurement as exact as it still is; None: nothing was measured."""
        return Clock(self.offset, self.error) if math.isfinite(self._best.error) else None

    def take(self, found: Clock) -> None:
        """Keep the more exact one of two measurements, unless the clock was set in between."""
        error = self.error
        was_set = abs(found.offset - self.offset) > found.error + error
        if found.error <= error or was_set:
            self._best = found
            self._measured_at = time.monotonic()
