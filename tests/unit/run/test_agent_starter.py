"""Nodes on their way to a session: each for itself, and given up without waiting for the slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from dslaunch.cluster.model import Node
from dslaunch.errors import Interrupted, NodeError, NodeFailure
from dslaunch.protocol.messages import Hello
from dslaunch.run.agent_program import AgentStart
from dslaunch.run.agent_starter import AgentStarter
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.session import Session
from dslaunch.transport.base import Channel, Connection
from dslaunch.transport.future import Future
from dslaunch.transport.program import Started

NODES = (Node("n1", (0,)), Node("n2", (0,)), Node("n3", (0,)))


@dataclass
class Way:
    """Connects at once, but for nodes that fail, and those that wait until they are let go."""

    dead: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    go: threading.Event = field(default_factory=threading.Event)
    started: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    def connect(self, node: Node) -> Connection:
        if node.host in self.slow:
            self.go.wait(300)
        if node.host in self.dead:
            raise NodeError((NodeFailure(node.host, "refused", "nobody listens"),))
        return Open(node.host, self.started, self.closed)

    def close(self) -> None:
        pass


@dataclass
class Open:
    host: str
    started: list[str]
    closed: list[str]

    def start(self, line: str, text: Sequence[bytes] = ()) -> Channel:
        self.started.append(self.host)
        raise OSError("no programs here")

    def close(self) -> None:
        self.closed.append(self.host)


@dataclass
class Said:
    """What a session was told, in the order of all sessions."""

    deaf: tuple[str, ...] = ()
    """Nodes whose transport raises an error at each heartbeat."""
    words: list[str] = field(default_factory=list)
    pinged: dict[str, threading.Event] = field(default_factory=dict)

    def session(self, node: Node, connection: Connection, agent: AgentStart) -> Session:
        said, pinged = self.words, self.pinged.setdefault(node.host, threading.Event())
        is_deaf = node.host in self.deaf

        class Fake:
            host = node.host
            hello: Future[Hello] = Future()

            def begin(self, started: Started) -> None:
                said.append(f"begin {node.host}")

            def ping(self) -> None:
                if is_deaf:
                    raise RuntimeError("not prepared for this")
                pinged.set()

            def dismiss(self) -> None:
                pass

            def close(self) -> None:
                said.append(f"close {node.host}")
                connection.close()

        return cast(Session, cast(Any, Fake()))


def agent_of(node: Node) -> AgentStart:
    """The agent that is started on a node."""
    return AgentStart("run", node.host)


def test_every_node_begins_as_soon_as_it_is_connected() -> None:
    way, said = Way(slow=("n1",)), Said()
    opening = AgentStarter(way, NODES, 8, agent_of, said.session)
    for host in ("n2", "n3"):
        opening.begun[host].result(60)
    assert not opening.begun["n1"].done()
    way.go.set()
    assert [s.host for s in opening.sessions(Interrupts())] == ["n1", "n2", "n3"]
    opening.close()
    assert sorted(said.words) == [f"{w} n{i}" for w in ("begin", "close") for i in (1, 2, 3)]
    assert sorted(way.closed) == ["n1", "n2", "n3"]


def test_an_agent_starts_while_its_session_is_being_made() -> None:
    """To import what a session needs takes longer than a login."""
    way, said, seen = Way(), Said(), list[bool]()

    def session(node: Node, connection: Connection, agent: AgentStart) -> Session:
        seen.append(node.host in way.started)
        return said.session(node, connection, agent)

    opening = AgentStarter(way, NODES, 8, agent_of, session)
    opening.sessions(Interrupts())
    opening.close()
    assert seen == [True, True, True]


def test_a_node_that_waits_for_a_slow_one_hears_of_us() -> None:
    way, said = Way(slow=("n1",)), Said()
    opening = AgentStarter(way, NODES, 8, agent_of, said.session, ping_interval=0.01)
    for host in ("n2", "n3"):
        opening.begun[host].result(60)
        assert said.pinged[host].wait(300)
    way.go.set()
    opening.sessions(Interrupts())
    assert said.pinged["n1"].wait(300)
    opening.close()


def test_a_heartbeat_that_fails_is_not_the_end_of_all_others() -> None:
    said = Said(deaf=("n1",))
    opening = AgentStarter(Way(), NODES, 8, agent_of, said.session, ping_interval=0.01)
    opening.sessions(Interrupts())
    for host in ("n2", "n3"):
        said.pinged[host].clear()  # the first round may have come before n1 was connected
        assert said.pinged[host].wait(300)
    opening.close()


def test_all_nodes_that_cannot_be_reached_are_named_at_once() -> None:
    opening = AgentStarter(Way(dead=("n1", "n3")), NODES, 2, agent_of, Said().session)
    with pytest.raises(NodeError) as refused:
        opening.sessions(Interrupts())
    assert [failure.host for failure in refused.value.failures] == ["n1", "n3"]
    assert isinstance(opening.begun["n1"].exception(), NodeError)
    opening.close()


def test_giving_up_does_not_wait_for_a_node_that_is_still_connecting() -> None:
    way, said = Way(slow=("n1",)), Said()
    # one at a time: the others have not even begun
    opening, interrupts = AgentStarter(way, NODES, 1, agent_of, said.session), Interrupts()
    interrupts.count = 1
    with pytest.raises(Interrupted):
        opening.sessions(interrupts)
    opening.close()
    assert [host for host, begun in opening.begun.items() if begun.done()] == ["n2", "n3"]
    way.go.set()
    deadline = time.monotonic() + 300
    while not way.closed and time.monotonic() < deadline:
        time.sleep(0.01)
    assert way.closed == ["n1"]
    assert said.words == []
