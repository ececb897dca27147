"""What waits to be taken, and the nodes that are paused meanwhile."""

from __future__ import annotations

from queue import SimpleQueue
from typing import cast

from dslaunch.errors import NodeFailure
from dslaunch.protocol.messages import Heartbeat
from dslaunch.run.arrivals import Arrival, Away, Back
from dslaunch.run.inbox import Inbox
from dslaunch.run.session import Session

BEAT = cast(Arrival, Heartbeat(time=1.0, idle=0.0))


class PausedSession:
    """A session that only notes whether it is paused."""

    paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


class LatePaused(PausedSession):
    """A session that is paused just when another thread has taken all, and found none paused."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox

    def pause(self) -> None:
        super().pause()
        while self.inbox.qsize():
            SimpleQueue.get(self.inbox)


def test_a_node_is_paused_until_half_is_taken() -> None:
    inbox, session = Inbox(most=4), PausedSession()
    for _ in range(5):
        inbox.add(cast(Session, session), BEAT)
    assert session.paused
    for _ in range(2):
        inbox.get()
    assert session.paused
    inbox.get()
    assert not session.paused


def test_nodes_that_reconnect_are_not_paused() -> None:
    """Nothing is taken before the start, while they are asked: they would never answer."""
    inbox, session = Inbox(most=4), PausedSession()
    for _ in range(5):
        inbox.note(cast(Session, session), Away(NodeFailure("n1", "broken", "connection lost")))
        inbox.note(cast(Session, session), Back(after=0.1))
    assert not session.paused


def test_a_node_is_not_paused_when_all_was_taken_meanwhile() -> None:
    """Nobody would resume it: nothing is taken from an empty inbox."""
    inbox = Inbox(most=4)
    session = LatePaused(inbox)
    for _ in range(5):
        inbox.add(cast(Session, session), BEAT)
    assert inbox.empty()
    assert not session.paused
