"""Reach the nodes of a cluster outside of a run: to show, stop and clean up what runs there."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from msgspec import Struct, field

from dslaunch import transport
from dslaunch.cluster.model import Cluster, Node
from dslaunch.errors import NodeError, NodeFailure
from dslaunch.protocol.queries import Answers, Questions
from dslaunch.run.agent_program import AgentStart
from dslaunch.run.agent_starter import AgentStarter
from dslaunch.run.inbox import Inbox
from dslaunch.run.interrupts import Interrupts, Until, never
from dslaunch.run.session import Session
from dslaunch.transport.base import Connection, Transport
from dslaunch.transport.future import Future
from dslaunch.transport.wire import LostError

ANSWER_TIMEOUT = 20.0
"""Seconds for an agent to greet, and for it to answer questions."""
Value = TypeVar("Value")


class ReachedNodes(Struct):
    """The nodes that answered, and why the others did not. In the order of the nodes."""

    sessions: dict[str, Session] = field(default_factory=dict)
    failures: dict[str, NodeFailure] = field(default_factory=dict)
    inbox: Inbox = field(default_factory=Inbox)


@contextlib.contextmanager
def reach(
    cluster: Cluster,
    nodes: Sequence[Node],
    run: str | None = None,
    *,
    until: Until = never,
    opened: Transport | None = None,
) -> Iterator[ReachedNodes]:
    """Connect to the agents of a run, or without one to agents that only answer questions.

    `opened`: a transport to use; None: that of the cluster. No signal is caught. Raises Interrupted
    when `until` returns True.
    """
    with _connecting(cluster, nodes, run, opened) as connecting:
        yield connecting.reached(Interrupts(until=until))


@contextlib.contextmanager
def reach_clusters(clusters: Sequence[Cluster]) -> Iterator[list[ReachedNodes]]:
    """Connect to all nodes of several clusters at once, as `reach` does for one."""
    with contextlib.ExitStack() as stack:
        connecting = [
            stack.enter_context(_connecting(cluster, cluster.nodes)) for cluster in clusters
        ]
        yield [each.reached(Interrupts()) for each in connecting]


class _Connecting(Struct, frozen=True):
    """Nodes that are being connected to."""

    starter: AgentStarter
    inbox: Inbox

    def reached(self, interrupts: Interrupts) -> ReachedNodes:
        """Wait for the nodes to greet; those that do not are failures. Raises Interrupted."""
        begun, failures = self.starter.wait(interrupts)
        interrupts.wait([session.hello for session in begun], ANSWER_TIMEOUT)
        reached = ReachedNodes(inbox=self.inbox)
        for session in begun:
            failure = _failure_to_greet(session)
            if failure is None:
                reached.sessions[session.host] = session
            else:
                failures.append(failure)
        by_host = {failure.host: failure for failure in failures}
        reached.failures |= {h: by_host[h] for h in self.starter.begun if h in by_host}
        return reached


@contextlib.contextmanager
def _connecting(
    cluster: Cluster,
    nodes: Sequence[Node],
    run: str | None = None,
    given: Transport | None = None,
) -> Iterator[_Connecting]:
    """Begin to connect to nodes; at the end close what is connected, and wait for no other."""
    inbox = Inbox()
    # which node has which ranks is not known yet: a run has at most one rank for each slot
    ranks = range(sum(len(node.slots) for node in cluster.nodes))

    def make_agent(node: Node) -> AgentStart:
        return AgentStart(run or f"ask-{secrets.token_hex(4)}", node.host)

    def make_session(node: Node, connection: Connection, agent: AgentStart) -> Session:
        session = Session(
            node=node, connection=connection, agent=agent, inbox=inbox, transport=opened
        )
        session.expect(ranks)
        return session

    with contextlib.closing(given or transport.get(cluster.transport, cluster, nodes)) as opened:
        starter = AgentStarter(
            transport=opened,
            nodes=nodes,
            fanout=cluster.connected_at_once,
            make_agent=make_agent,
            make_session=make_session,
            join=run is not None,
        )
        with contextlib.closing(starter):
            yield _Connecting(starter, inbox)


def _failure_to_greet(session: Session) -> NodeFailure | None:
    if not session.hello.done():
        return _unanswered(session.host)
    error = session.hello.exception()
    return error.failure if isinstance(error, LostError) else None


def _unanswered(host: str) -> NodeFailure:
    return NodeFailure(host, "timeout", f"no answer within {ANSWER_TIMEOUT:.0f} s")


def ask(
    reached: ReachedNodes, questions: Questions | None = None, *, until: Until = never
) -> dict[str, Answers]:
    """Ask every node that was reached, and measure its clock; return the answers by host.

    Nodes that do not answer, or whose answer is invalid, become failures. Raises Interrupted when
    `until` returns True.
    """
    return ask_each([reached], questions, until=until)[0]


def ask_each(
    several: Sequence[ReachedNodes], questions: Questions | None = None, *, until: Until = never
) -> list[dict[str, Answers]]:
    """Ask the nodes of several clusters at once, as `ask` does."""
    waited_for: list[Future[Any]] = []
    asked: list[dict[str, Future[Answers]]] = []
    for reached in several:
        sessions = reached.sessions.values()
        waited_for += [session.measure_clock() for session in sessions]
        asked.append({session.host: session.ask(questions or {}) for session in sessions})
        waited_for += asked[-1].values()
    Interrupts(until=until).wait(waited_for, ANSWER_TIMEOUT)
    return [_answers(reached, own) for reached, own in zip(several, asked, strict=True)]


def _answers(reached: ReachedNodes, asked: dict[str, Future[Answers]]) -> dict[str, Answers]:
    answers = {}
    for host, future in asked.items():
        try:
            answers[host] = answer_of(host, future, timeout=0)
        except NodeError as error:
            reached.failures[host] = error.failures[0]
    return answers


def answer_of(
    host: str, future: Future[Value], *, timeout: float = ANSWER_TIMEOUT, until: Until = never
) -> Value:
    """Return what a node answered, within `timeout` seconds.

    Raises NodeError, and Interrupted when `until` returns True before.
    """
    if not future.done():
        Interrupts(until=until).wait([future], timeout)
    try:
        return future.result(0)
    except LostError as error:
        raise NodeError((error.failure,)) from None
    except TimeoutError:
        raise NodeError((_unanswered(host),)) from None
