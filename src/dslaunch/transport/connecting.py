"""Connect to all nodes at once, and begin something over each connection, in the background."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from dslaunch.errors import NodeError, NodeFailure
from dslaunch.transport.fulfill import fulfill
from dslaunch.transport.future import Future

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node
    from dslaunch.transport.base import Connection, Transport

Begun = TypeVar("Begun")


class Connecting(Generic[Begun]):
    """Connects to every node, `at_once` nodes at a time, in threads that nothing waits for."""

    def __init__(
        self,
        transport: Transport,
        nodes: Sequence[Node],
        at_once: int,
        begin: Callable[[Node, Connection], Begun],
    ) -> None:
        """`begin` is called with each node and the connection to it, in one of the threads."""
        self.begun: dict[str, Future[Begun]] = {node.host: Future() for node in nodes}
        """Done as soon as `begin` has returned for that node; a NodeError if it cannot be
        reached."""
        self._transport, self._begin = transport, begin
        self._waiting = deque(nodes)
        self._stopped = threading.Event()
        for number in range(max(1, min(at_once, len(nodes)))):
            name = f"connecting_{number}"
            threading.Thread(target=self._begin_nodes, name=name, daemon=True).start()

    def stop(self) -> None:
        """Connect to no more nodes. Connections that are being made are closed when they are
        made; what has begun is left to the caller."""
        self._stopped.set()
        while (node := self._next_node()) is not None:
            self.begun[node.host].set_exception(_not_needed(node))

    def _begin_nodes(self) -> None:
        """Begin one node after the other, until none is left."""
        while (node := self._next_node()) is not None:
            fulfill(self.begun[node.host], partial(self._connect, node))

    def _next_node(self) -> Node | None:
        with suppress(IndexError):  # there are no more
            return self._waiting.popleft()
        return None

    def _connect(self, node: Node) -> Begun:
        connection = self._transport.connect(node)
        if self._stopped.is_set():
            connection.close()
            raise _not_needed(node)
        return self._begin(node, connection)


def _not_needed(node: Node) -> NodeError:
    return NodeError((NodeFailure(node.host, "lost", "no longer needed"),))
