"""By how much a node's clock is ahead of ours, and how exactly that is known."""

from __future__ import annotations

import math
import time

from msgspec import Struct

DRIFT = 50e-6
"""Seconds per second by which two clocks may drift apart: quartz crystals are specified for 20 to
50 ppm."""


class Clock(Struct, frozen=True):
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

    def common_with(self, other: Clock) -> Clock | None:
        """Return what holds if both measurements do; None: they exclude each other."""
        least = max(self.offset - self.error, other.offset - other.error)
        most = min(self.offset + self.error, other.offset + other.error)
        if least > most:
            return None
        return Clock(offset=(least + most) / 2, error=(most - least) / 2)


class MeasuredClock:
    """What all measurements of a node's clock say together, which becomes less exact with time.

    Each measurement says between which limits it is, and they hold at once. An answer that has
    waited long here is exact in one of its limits: that of its request.
    """

    __slots__ = ("_known", "_measured_at")

    def __init__(self) -> None:
        self._known = Clock(offset=0.0, error=math.inf)
        """With an infinite error until something was measured."""
        self._measured_at = 0.0
        """On the monotonic clock."""

    @property
    def offset(self) -> float:
        """How far the node's clock is ahead, in seconds; 0.0: nothing was measured."""
        return self._known.offset

    @property
    def error(self) -> float:
        """By how many seconds `offset` may be wrong now; infinite: nothing was measured."""
        return self._known.error + DRIFT * (time.monotonic() - self._measured_at)

    def known(self) -> Clock | None:
        """Return the measurement as exact as it still is; None: nothing was measured."""
        return Clock(self.offset, self.error) if math.isfinite(self._known.error) else None

    def take(self, found: Clock) -> None:
        """Add a measurement. One that excludes those before counts alone: the clock was set."""
        known = self.known()
        common = None if known is None else known.common_with(found)
        self._known = common or found
        self._measured_at = time.monotonic()
