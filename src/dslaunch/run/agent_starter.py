"""Connect to all nodes at once and start their agents, while we do something else."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from dslaunch.errors import NodeError, NodeFailure

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node
    from dslaunch.run.interrupts import Interrupts
    from dslaunch.run.session import Session
    from dslaunch.transport.base import Connection, Transport

PING = 5.0
"""Seconds between two signs of life of ours, at most."""
HEAD_START = 0.3
"""Seconds at most: near nodes are connected to by then."""


class AgentStarter:
    """Connects to every node and starts its agent, `fanout` nodes at a time; until it is closed,
    every agent hears that we are there, however long the other nodes take."""

    def __init__(
        self,
        transport: Transport,
        nodes: Sequence[Node],
        fanout: int,
        session: Callable[[Node, Connection], Session],
        ping: float = PING,
    ) -> None:
        self._transport, self._session = transport, session
        workers = max(1, min(fanout, len(nodes)))
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="starter")
        self._closed = threading.Event()
        self.begun = {node.host: self._pool.submit(self._begin, node) for node in nodes}
        """Each done as soon as that node is connected and its agent started; a NodeError if it
        cannot be reached."""
        threading.Thread(target=self._ping, args=(ping,), name="ping", daemon=True).start()

    def head_start(self, interrupts: Interrupts) -> None:
        """Do nothing else for a moment: where this interpreter computes the key exchanges, one
        thread at a time, the sooner they are over the sooner the nodes' processors are at work.

        Raises Interrupted.
        """
        interrupts.wait([*self.begun.values()], HEAD_START)

    def sessions(self, interrupts: Interrupts) -> list[Session]:
        """Wait for all nodes' sessions, in the nodes' order.

        Raises NodeError naming every node that could not be used, Interrupted.
        """
        interrupts.wait([*self.begun.values()], math.inf)
        errors = [future.exception() for future in self.begun.values()]
        failures: tuple[NodeFailure, ...] = ()
        for error in errors:
            if isinstance(error, NodeError):
                failures += error.failures
            elif error is not None:
                raise error
        if failures:
            raise NodeError(failures)
        return [future.result() for future in self.begun.values()]

    def close(self) -> None:
        """Say goodbye to all at once, and hang up. What is still on its way ends by itself."""
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        ready = [future for future in self.begun.values() if future.done()]
        close_all([future.result() for future in ready if _went_well(future)])
        for future in set(self.begun.values()) - set(ready):
            future.add_done_callback(_hang_up)

    def _begin(self, node: Node) -> Session:
        connection = self._transport.connect(node)
        if self._closed.is_set():
            connection.close()
            raise NodeError((NodeFailure(node.host, "lost", "given up"),))
        session = self._session(node, connection)
        session.begin()
        return session

    def _ping(self, seconds: float) -> None:
        while not self._closed.wait(seconds):
            for begun in self.begun.values():
                if _went_well(begun):
                    begun.result().ping()


def close_all(sessions: Sequence[Session]) -> None:
    """Say goodbye to all at once: a node that is slow to leave must not hold up the others."""
    with ThreadPoolExecutor(max_workers=32) as pool:
        list(pool.map(lambda session: session.close(), sessions))


def _went_well(future: Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _hang_up(begun: Future[Session]) -> None:
    if _went_well(begun):
        begun.result().close()
