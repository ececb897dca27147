"""Speak to agents that are there already, or to nodes as such: for looking, stopping, cleaning."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from queue import Queue
from typing import Any, TypeVar

from dslaunch import transport
from dslaunch.cluster.model import Cluster, Node
from dslaunch.errors import NodeError, NodeFailure
from dslaunch.protocol.queries import Answers, Questions
from dslaunch.run.agent_starter import close_all
from dslaunch.run.boot import Agent
from dslaunch.run.session import INBOX_SIZE, Inbox, Session
from dslaunch.transport.pool import connect_all
from dslaunch.transport.wire import LostError

ANSWER_TIMEOUT = 20.0
Value = TypeVar("Value")


@dataclass(slots=True)
class ReachedNodes:
    """The nodes that answered, and why the others did not. In the order of the nodes."""

    sessions: dict[str, Session] = field(default_factory=dict)
    failures: dict[str, NodeFailure] = field(default_factory=dict)
    inbox: Inbox = field(default_factory=lambda: Queue(INBOX_SIZE))


@contextlib.contextmanager
def reach(
    cluster: Cluster, nodes: Sequence[Node], run: str | None = None
) -> Iterator[ReachedNodes]:
    """Connect to the agents of a run, or without one to agents that only answer questions."""
    reached = ReachedNodes()
    # who has which ranks is not known yet: a run has at most a rank for each slot
    ranks = range(sum(len(node.slots) for node in cluster.nodes))
    with contextlib.ExitStack() as stack:
        opened = transport.get(cluster.transport, cluster)
        stack.callback(opened.close)
        for host, made in connect_all(opened, nodes, cluster.ssh.fanout).items():
            if isinstance(made, NodeFailure):
                reached.failures[host] = made
                continue
            stack.callback(made.close)
            node = next(node for node in nodes if node.host == host)
            agent = Agent(run or f"ask-{secrets.token_hex(4)}", host)
            reached.sessions[host] = Session(node, made, agent, reached.inbox, opened)
        stack.callback(close_all, list(reached.sessions.values()))
        for session in reached.sessions.values():
            session.expect(ranks)
            session.begin(join=run is not None)
        _sort_out(reached)
        yield reached


def _sort_out(reached: ReachedNodes) -> None:
    """Wait for the greetings; whoever does not greet is a failure."""
    wait([session.hello for session in reached.sessions.values()], ANSWER_TIMEOUT)
    for host, session in list(reached.sessions.items()):
        why = None
        if not session.hello.done():
            why = NodeFailure(host, "timeout", f"no answer within {ANSWER_TIMEOUT:.0f} s")
        elif isinstance(error := session.hello.exception(), LostError):
            why = error.failure
        if why is not None:
            del reached.sessions[host]
            reached.failures[host] = why


def ask(reached: ReachedNodes, questions: Questions | None = None) -> dict[str, Answers]:
    """Ask every node that was reached, and measure its clock; those that do not answer, or
    answer what is invalid, become failures."""
    clocks = [session.measure_clock() for session in reached.sessions.values()]
    asked = {host: session.ask(questions or {}) for host, session in reached.sessions.items()}
    waited_for: list[Future[Any]] = [*clocks, *asked.values()]
    wait(waited_for, ANSWER_TIMEOUT)
    answers = {}
    for host, future in asked.items():
        try:
            answers[host] = answer_of(host, future, timeout=0)
        except NodeError as error:
            reached.failures[host] = error.failures[0]
    return answers


def answer_of(host: str, future: Future[Value], *, timeout: float = ANSWER_TIMEOUT) -> Value:
    """Return what a node answered, within `timeout` seconds. Raises NodeError."""
    try:
        return future.result(timeout)
    except LostError as error:
        raise NodeError((error.failure,)) from None
    except TimeoutError:
        why = f"no answer within {ANSWER_TIMEOUT:.0f} s"
        raise NodeError((NodeFailure(host, "timeout", why),)) from None
