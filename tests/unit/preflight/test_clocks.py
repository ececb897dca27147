"""How a node's clock is compared with ours: by the fastest of some round trips."""

from __future__ import annotations

import json

import pytest

from dslaunch.cluster.model import Node
from dslaunch.preflight import conversation

AHEAD = 90.0


class Line:
    """A node whose clock is ahead, over a network that takes these times there and back."""

    def __init__(self, trips: list[float]) -> None:
        self.trips, self.now, self.asked = trips, 1000.0, 0

    def time(self) -> float:
        return self.now

    monotonic = time

    def write(self, data: bytes) -> None:
        assert json.loads(data) == {"clock": True}
        self.asked += 1

    def read(self) -> bytes:
        trip = self.trips.pop(0)
        self.now += trip
        return b"@" + json.dumps({"clock": self.now - trip / 2 + AHEAD}).encode() + b"\n"


@pytest.mark.parametrize(
    ("trips", "asked", "best"),
    [
        ([0.01, 9.0, 9.0], 1, 0.01),
        ([0.4, 0.02, 9.0], 2, 0.02),
        ([0.4, 0.2, 0.3], 3, 0.2),
    ],
)
def test_a_clock_is_asked_again_only_after_slow_answers(
    trips: list[float], asked: int, best: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(trips)
    monkeypatch.setattr(conversation, "time", line)
    talk = conversation.Conversation(Node("n", (0,)), b"@")
    talk.channel = line  # type: ignore[assignment]
    talk.measure_clock()
    assert line.asked == asked
    assert talk.clock == pytest.approx((AHEAD, best / 2))
