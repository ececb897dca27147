"""How a node's clock is compared with ours: by all of its answers, or by a few round trips."""

from __future__ import annotations

import math
from typing import cast

import pytest

from dslaunch.cluster.model import Node
from dslaunch.preflight.conversation import Conversation
from dslaunch.transport.clock import Clock, MeasuredClock
from dslaunch.transport.future import Future, done_with
from dslaunch.transport.wire import Wire

AHEAD = 90.0


class Line:
    """A node whose clock is ahead, over a network that takes these times there and back."""

    def __init__(self, *, answered_in: float, trips: list[float]) -> None:
        """`answered_in`: of the questions, without the work on the node; infinite: none was."""
        self.trips, self.asked = trips, 0
        self.clock = MeasuredClock()
        if math.isfinite(answered_in):
            self.clock.take(Clock(AHEAD, answered_in / 2))

    def known_clock(self) -> Clock | None:
        return self.clock.known()

    def measure_clock(self) -> Future[Clock]:
        self.asked += 1
        found = Clock(AHEAD, self.trips.pop(0) / 2)
        self.clock.take(found)
        return done_with(found)


@pytest.mark.parametrize(
    ("answered_in", "trips", "asked", "best"),
    [
        (0.1, [], 0, 0.1),
        (5.0, [0.01, 9.0, 9.0], 1, 0.01),
        (math.inf, [0.01, 9.0, 9.0], 1, 0.01),
        (5.0, [0.6, 0.02, 9.0], 2, 0.02),
        (5.0, [0.8, 0.6, 0.7], 3, 0.6),
    ],
)
def test_a_clock_is_asked_for_only_after_slow_answers(
    answered_in: float, trips: list[float], asked: int, best: float
) -> None:
    line = Line(answered_in=answered_in, trips=trips)
    talk = Conversation(Node("n", (0,)), wire=cast(Wire, line))
    talk.measure_clock()
    assert line.asked == asked
    assert talk.clock == pytest.approx((AHEAD, best / 2), abs=0.001)
