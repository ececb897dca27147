"""Log in to all nodes and start the program that answers there, in the background.

Nothing of the questions and checks is imported here: that is done while the nodes are logged in to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dslaunch import transport as transports
from dslaunch.transport import program
from dslaunch.transport.connecting import Connecting
from dslaunch.transport.future import Future

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation, Cluster, Node
    from dslaunch.transport.base import Connection, Transport
    from dslaunch.transport.ssh.choice import Choice

_MAIN = "survey"


class Login(NamedTuple):
    """A connection to a node, and the program that was started over it."""

    connection: Connection
    started: program.Started


def log_in(node: Node, connection: Connection) -> Login:
    """Start the program over a new connection to a node."""
    return Login(connection, program.start(connection, node, program.text(_MAIN, {})))


class Logins:
    """Logs in to every node, `at_once` nodes at a time."""

    def __init__(self, transport: Transport, nodes: Sequence[Node], at_once: int) -> None:
        """Begin to log in."""
        self.transport = transport
        self._connecting = Connecting(transport, nodes, at_once, log_in)
        self._begun = dict(self._connecting.begun)

    def take(self, host: str) -> Future[Login]:
        """Return the login of a node, whose connection the caller closes from now on.

        It is done as soon as the program has been started; a NodeError if the node cannot be
        reached.
        """
        return self._begun.pop(host)

    def close(self) -> None:
        """Close the transport, and all connections that were not taken. Nothing waits for those
        that are being made: they are closed when they are made."""
        self._connecting.stop()
        for login in self._begun.values():
            login.add_done_callback(_close_connection)
        self.transport.close()


def begin_logins(cluster: Cluster, nodes: Sequence[Node], choice: Choice | None = None) -> Logins:
    """Begin to log in to nodes of a cluster, and prepare what the logins need.

    `choice`: how they are reached. Raises UsageError, PlanError and ToolMissingError, as
    `transport.choose` does.
    """
    choice = choice or transports.choose(cluster.transport, cluster)
    opened = transports.make(choice.name, cluster, nodes)
    logins = Logins(opened, nodes, cluster.connected_at_once)
    transports.import_client(choice.name)
    program.prepare(_MAIN)
    return logins


def asked_nodes(cluster: Cluster, allocation: Allocation | None) -> tuple[Node, ...]:
    """Return the nodes of an allocation; without one also spares, which may be needed one day."""
    if allocation is None:
        return cluster.nodes
    return tuple(placement.node for placement in allocation.placements)


def _close_connection(login: Future[Login]) -> None:
    if login.exception() is None:
        login.result().connection.close()
