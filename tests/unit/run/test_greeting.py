"""A node that has not greeted yet, or not again: what it is sent, and how long it has."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from dslaunch.cluster.model import Node
from dslaunch.node import frames
from dslaunch.run import agent_program
from dslaunch.run.agent_program import AgentStart
from dslaunch.run.arrivals import Lost
from dslaunch.run.inbox import Inbox
from dslaunch.run.session import Session
from dslaunch.transport import login_shell
from dslaunch.transport.base import End, Receiver
from dslaunch.transport.loop import shared

NODE = Node("n1", (0,))
RECONNECT = 1.0
HELLO = frames.pack_message(
    {
        "event": "hello",
        "time": 1.0,
        "run": "run",
        "started": True,
        "last": 0,
        "hostname": "n1",
        "boot": "b",
        "network": "n",
        "home": "/",
    }
)
HEARTBEAT = 60.0
"""Seconds: many times the time in which a node may be unreachable."""
TRICKLES = {
    "login": login_shell.STARTED,
    "message": login_shell.STARTED
    + frames.GREETING
    + frames.HEADER.pack(1 << 20, frames.MESSAGE, 0),
}
"""What the node says at once when it is connected to again; one byte at a time follows."""


class Trickling:
    """A transport, its connections and their channels: the first one greets and breaks, and the
    others say a little, again and again."""

    def __init__(self, first: bytes, again: bytes) -> None:
        self.first, self.again = first, again
        self.go = threading.Event()
        """Set when the first connection breaks."""
        self.connections = 0

    def connect(self, node: Node) -> Link:
        self.connections += 1
        return Link(self, self.first if self.connections == 1 else self.again)

    def close(self) -> None:
        """Nothing is held."""


class Link:
    unsent = 0

    def __init__(self, way: Trickling, said: bytes) -> None:
        self.way, self.said = way, said
        self.breaks = said == way.first
        self.closed = threading.Event()

    def start(self, line: str, text: Sequence[bytes] = ()) -> Link:
        return self

    def listen(self, receiver: Receiver) -> None:
        threading.Thread(target=self.say, args=[receiver], daemon=True).start()

    def say(self, receiver: Receiver) -> None:
        loop = shared()
        loop.call(lambda: receiver.received(self.said))
        if self.breaks:
            self.way.go.wait(300)
        else:
            while not self.closed.wait(0.1):
                loop.call(lambda: receiver.received(b"x"))
        loop.call(lambda: receiver.ended(End()))

    def write(self, data: bytes) -> None:
        """It is taken."""

    def close_input(self) -> None:
        """Nothing waits for it."""

    def close(self) -> None:
        self.closed.set()


def lost_when_it_goes(way: Trickling, heartbeat: float) -> tuple[Lost, float]:
    """Let a node that is followed go; return its loss, and the seconds until then."""
    agent = AgentStart("run", "n1", heartbeat=heartbeat, reconnect=RECONNECT)
    inbox = Inbox()
    session = Session(NODE, way.connect(NODE), agent, inbox, way)
    session.begin()
    session.hello.result(60)
    session.follow(hold=True)
    way.go.set()
    began = time.monotonic()
    arrived = None
    while not isinstance(arrived, Lost):
        _, arrived = inbox.get(timeout=300)
    seconds = time.monotonic() - began
    session.close()
    return arrived, seconds


@pytest.mark.parametrize("trickle", TRICKLES)
def test_a_node_that_says_a_little_again_and_again_is_lost_in_time(trickle: str) -> None:
    way = Trickling(login_shell.STARTED + frames.GREETING + HELLO, TRICKLES[trickle])
    lost, seconds = lost_when_it_goes(way, heartbeat=1)
    assert seconds < 300  # without a limit it trickles for ever
    assert lost.failure.kind == "lost"


class Unanswered(Trickling):
    """A transport whose further connections are made after all tries."""

    def connect(self, node: Node) -> Link:
        if self.connections:
            threading.Event().wait(HEARTBEAT)
        return super().connect(node)


def test_a_try_to_connect_again_takes_no_longer_than_the_node_may_be_unreachable() -> None:
    way = Unanswered(login_shell.STARTED + frames.GREETING + HELLO, b"")
    _, seconds = lost_when_it_goes(way, heartbeat=HEARTBEAT)
    assert seconds < HEARTBEAT


class Failing(Trickling):
    """A transport of a plugin that fails in a way of its own when it connects again."""

    def connect(self, node: Node) -> Link:
        if self.connections:
            raise RuntimeError("not prepared for this")
        return super().connect(node)


def test_a_node_is_lost_whose_transport_fails_when_it_connects_again() -> None:
    way = Failing(login_shell.STARTED + frames.GREETING + HELLO, b"")
    lost, _ = lost_when_it_goes(way, heartbeat=1)
    assert lost.failure.kind == "lost"
    assert "not prepared for this" in lost.failure.message


class Slow:
    """A connection to a node, and its channel: the node says what the test lets it say."""

    unsent = 0

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def start(self, line: str, text: Sequence[bytes] = ()) -> Slow:
        return self

    def listen(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def say(self, data: bytes) -> None:
        shared().call(lambda: self.receiver.received(data))

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close_input(self) -> None:
        shared().call(lambda: self.receiver.ended(End()))

    def close(self) -> None:
        """Nothing is held."""


def test_an_agent_is_pinged_once_it_has_greeted() -> None:
    """Over a slow link its program is still arriving, and what follows may be read with it."""
    link = Slow()
    way = Trickling(b"", b"")
    session = Session(NODE, link, AgentStart("run", "n1"), Inbox(), way)
    session.begin()
    session.ping()
    assert link.written == []
    link.say(login_shell.STARTED + frames.GREETING + HELLO)
    session.hello.result(60)
    session.ping()
    assert link.written == [frames.pack_message({"op": "ping"})]
    session.close()


def test_a_greeting_dates_a_clock_only_to_the_start_of_the_agent() -> None:
    """It may have arrived long before the session was made that takes it."""
    link, agent = Slow(), AgentStart("run", "n1")
    started = agent_program.start(link, NODE, agent)
    session = Session(NODE, link, agent, Inbox(), Trickling(b"", b""))
    session.begin(started._replace(began=started.began - 20))
    link.say(login_shell.STARTED + frames.GREETING + HELLO)
    session.hello.result(60)
    assert session.clock_error >= 10  # half of the time in which the node may have written it
    session.close()
