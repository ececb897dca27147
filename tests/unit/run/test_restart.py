"""The last attempt of a run is ended on all nodes: what is received, and what is waited for."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dslaunch.errors import NodeFailure
from dslaunch.protocol.messages import NodeEvent
from dslaunch.run.arrivals import Arrival, Lost
from dslaunch.run.handle import this_user
from dslaunch.run.inbox import Inbox
from dslaunch.run.reach import ReachedNodes
from dslaunch.run.restart import end_all
from dslaunch.run.session import Session
from dslaunch.transport.future import Future

DONE = NodeEvent(event="done", time=1.0)
LEFT = NodeEvent(event="done", time=1.0, left=(7,))
LOST = Lost(NodeFailure("n1", "lost", "no answer"))


@dataclass
class Node:
    """A session with a node whose journal has 1,000 frames; `answers` to the request to stop."""

    host: str
    inbox: Inbox
    answers: tuple[Arrival, ...]
    skipped: int = 0
    sent: list[dict[str, Any]] = field(default_factory=list)

    @property
    def hello(self) -> Future[SimpleNamespace]:
        greeting: Future[SimpleNamespace] = Future()
        greeting.set_result(SimpleNamespace(last=1000))
        return greeting

    def skip(self, number: int) -> None:
        self.skipped = number

    def follow(self, *, hold: bool) -> None:
        assert not hold

    def send(self, **message: Any) -> None:
        self.sent.append(message)
        for answer in self.answers:
            self.inbox.put((cast("Session", self), answer))


class Impatient(Inbox):
    """An inbox in which nothing is to be waited for."""

    def get(self, block: bool = True, timeout: float | None = None) -> tuple[Session, Arrival]:
        assert not self.empty()
        return super().get(block, timeout)


def stopped(**answers: tuple[Arrival, ...]) -> tuple[list[str], list[Node]]:
    """Return the nodes that did not confirm, and all nodes."""
    inbox = Impatient()
    nodes = [Node(host, inbox, sent) for host, sent in answers.items()]
    sessions = {node.host: cast("Session", node) for node in nodes}
    return end_all(ReachedNodes(sessions=sessions, inbox=inbox), 3.0), nodes


def test_nodes_confirm_that_nothing_is_left() -> None:
    unconfirmed, nodes = stopped(n1=(DONE,), n2=(LEFT, LOST))
    assert unconfirmed == ["n2"]
    assert [node.sent for node in nodes] == [[{"op": "stop", "grace": 3.0, "by": None}]] * 2


def test_the_output_of_a_long_run_is_not_received_to_stop_it() -> None:
    _, (node,) = stopped(n1=(DONE,))
    assert node.skipped == 999


def test_a_lost_node_is_not_waited_for() -> None:
    assert stopped(n1=(LOST,), n2=(DONE,))[0] == ["n1"]


def test_a_user_without_a_name_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert this_user().startswith("4000000000@")
