"""How a node's clock is compared with ours: by the fastest of some round trips."""

from __future__ import annotations

from typing import cast

import pytest

from dslaunch.cluster.model import Node
from dslaunch.preflight.conversation import Conversation
from dslaunch.transport.clock import Clock
from dslaunch.transport.future import Future
from dslaunch.transport.wire import Wire

AHEAD = 90.0


class Line:
    """A node whose clock is ahead, over a network that takes these times there and back."""

    def __init__(self, trips: list[float]) -> None:
        self.trips, self.asked = trips, 0

    def known_clock(self) -> None:
        return None

    def measure_clock(self) -> Future[Clock]:
        self.asked += 1
        half = self.trips.pop(0) / 2
        measured: Future[Clock] = Future()
        measured.set_result(Clock(AHEAD + half, half))
        return measured


@pytest.mark.parametrize(
    ("trips", "asked", "best"),
    [
        ([0.01, 9.0, 9.0], 1, 0.01),
        ([0.6, 0.02, 9.0], 2, 0.02),
        ([0.8, 0.6, 0.7], 3, 0.6),
    ],
)
def test_a_clock_is_asked_again_only_after_slow_answers(
    trips: list[float], asked: int, best: float
) -> None:
    line = Line(trips)
    talk = Conversation(Node("n", (0,)), wire=cast(Wire, line))
    talk.measure_clock()
    assert line.asked == asked
    assert talk.clock == pytest.approx((AHEAD + best / 2, best / 2))
