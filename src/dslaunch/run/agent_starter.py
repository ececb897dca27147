"""Connect to all nodes at once and start their agents, in the background."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from dslaunch import log
from dslaunch.errors import NodeError, NodeFailure
from dslaunch.transport.connecting import Connecting
from dslaunch.transport.future import Future

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node
    from dslaunch.protocol.messages import Hello
    from dslaunch.run.agent_program import AgentStart
    from dslaunch.run.interrupts import Interrupts
    from dslaunch.run.session import Session
    from dslaunch.transport.base import Connection, Transport

PING_INTERVAL = 5.0
"""Seconds between two heartbeats of ours, at most."""
CLOSED_AT_ONCE = 32
"""Sessions that are closed at the same time."""
LONGEST_ERROR = 500
"""Characters of an unexpected error that are logged."""
_log = log.Log(__name__)


class AgentStarter:
    """Connects to every node and starts its agent, `fanout` nodes at a time.

    Until it is closed, every agent gets heartbeats, however long the other nodes take.
    """

    def __init__(
        self,
        transport: Transport,
        nodes: Sequence[Node],
        fanout: int,
        make_agent: Callable[[Node], AgentStart],
        make_session: Callable[[Node, Connection, AgentStart], Session],
        *,
        join: bool = False,
        ping_interval: float = PING_INTERVAL,
    ) -> None:
        """Begin to connect. With `join`, find the agents that are running instead of starting
        new ones."""
        self._join = join
        self._make_agent, self._make_session = make_agent, make_session
        self._closed = threading.Event()
        self._greeted: deque[str] = deque()
        self._connecting = Connecting(transport, nodes, fanout, self._begin)
        self.begun: dict[str, Future[Session]] = self._connecting.begun
        """Done as soon as that node is connected and its agent started; a NodeError if it cannot
        be reached."""
        threading.Thread(target=self._ping, args=(ping_interval,), name="ping", daemon=True).start()

    def wait(
        self, interrupts: Interrupts, notify: Callable[[], object] = lambda: None
    ) -> tuple[list[Session], list[NodeFailure]]:
        """Wait for all nodes; return the sessions and the failures, in the nodes' order.

        `notify` is called several times a second. Raises Interrupted.
        """
        interrupts.wait([*self.begun.values()], math.inf, notify)
        sessions: list[Session] = []
        failures: list[NodeFailure] = []
        for future in self.begun.values():
            error = future.exception()
            if error is None:
                sessions.append(future.result())
            elif isinstance(error, NodeError):
                failures += error.failures
            else:
                raise error
        return sessions, failures

    def new_greetings(self) -> Iterator[str]:
        """Yield the nodes whose agents have started and greeted since the last call."""
        while self._greeted:
            yield self._greeted.popleft()

    def sessions(
        self, interrupts: Interrupts, notify: Callable[[], object] = lambda: None
    ) -> list[Session]:
        """Wait for the sessions of all nodes, in the nodes' order.

        Raises NodeError naming every node that could not be used, Interrupted.
        """
        sessions, failures = self.wait(interrupts, notify)
        if failures:
            raise NodeError(tuple(failures))
        return sessions

    def close(self) -> None:
        """Close all sessions at once. Connections that are being made are closed when they are
        made; nothing waits for them."""
        self._closed.set()
        self._connecting.stop()
        ready = [future for future in self.begun.values() if future.done()]
        close_all([future.result() for future in ready if _succeeded(future)])
        for future in set(self.begun.values()) - set(ready):
            future.add_done_callback(_close_session)

    def _begin(self, node: Node, connection: Connection) -> Session:
        from dslaunch.run import agent_program  # while other nodes are connected to

        agent = self._make_agent(node)
        # before the session is made, which a launcher that has just been started imports first:
        # that takes longer than the login, and the agent can start meanwhile
        started = agent_program.start(connection, node, agent, join=self._join)
        session = self._make_session(node, connection, agent)
        session.hello.add_done_callback(partial(self._note_greeting, node.host))
        session.begin(started)
        return session

    def _note_greeting(self, host: str, hello: Future[Hello]) -> None:
        if hello.exception() is None:
            self._greeted.append(host)

    def _ping(self, interval: float) -> None:
        while not self._closed.wait(interval):
            for begun in self.begun.values():
                if _succeeded(begun):
                    _ping(begun.result())


def _ping(session: Session) -> None:
    """Send a heartbeat. What fails there, in a transport of a plugin, must not be the end of the
    heartbeats of all other nodes."""
    try:
        session.ping()
    except Exception as error:  # noqa: BLE001 - see above
        _log.info("ping-failed", node=session.host, error=repr(error)[:LONGEST_ERROR])


def close_all(sessions: Sequence[Session]) -> None:
    """Close sessions at the same time: a node that is slow to close must not delay the others."""
    for session in sessions:
        session.dismiss()
    shares = [sessions[start::CLOSED_AT_ONCE] for start in range(CLOSED_AT_ONCE)]
    with ThreadPoolExecutor(max_workers=CLOSED_AT_ONCE) as pool:
        list(pool.map(_close_each, shares))


def _close_each(sessions: Sequence[Session]) -> None:
    for session in sessions:
        session.close()


def _succeeded(begun: Future[Session]) -> bool:
    return begun.done() and begun.exception() is None


def _close_session(begun: Future[Session]) -> None:
    if _succeeded(begun):
        begun.result().close()
