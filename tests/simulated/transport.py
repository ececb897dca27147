"""The transport to a simulated cluster, as a plugin has one."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence

from dslaunch.plugin import (
    Cluster,
    End,
    Node,
    NodeError,
    NodeFailure,
    QueueingChannel,
    TransportType,
)
from dslaunch.transport.transports.tree import TreeTransport

PATH = "SIMULATED_CLUSTER"
"""The environment variable with the path of the server's socket."""
ACCEPTED, REFUSED = b"+", b"-"
"""What a node answers to a login."""
PIECE = 256 * 1024


class SimulatedChannel(QueueingChannel):
    """The program on a node is at the other end of a socket."""

    __slots__ = ("_closed", "_socket")

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._socket = connection
        self._closed = False

    def close(self) -> None:
        """End the connection."""
        self.outbox.discard()
        self.loop.call(self._close)

    def read_on(self) -> None:
        """Watch the socket."""
        if not self._closed:
            reading = self._read if self.wanted else None
            writing = self._send_more if self.outbox.unsent else None
            self.loop.watch(self._socket.fileno(), reading, writing)

    def send(self, data: memoryview) -> int:
        """Send what the socket takes. Raises OSError."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            self.loop.call(self.read_on)
            return 0

    def _read(self) -> None:
        if not self.wanted:
            self.read_on()
            return
        try:
            data = self._socket.recv(PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.deliver(data)
        else:
            self._close()

    def _send_more(self) -> None:
        self.outbox.go_on()
        self.read_on()  # a socket that nothing waits for is always writable

    def end_input(self) -> None:
        """Let the program read the end of its input."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self.loop.forget(self._socket.fileno())
            self._socket.close()
            self.tell_end(End())


class SimulatedConnection:
    """A node that has logged us in. Each program on it has its own login."""

    __slots__ = ("_channels", "_log_in", "_node", "_unused")

    def __init__(
        self, first: socket.socket, log_in: Callable[[Node], socket.socket], node: Node
    ) -> None:
        self._unused: socket.socket | None = first
        self._log_in, self._node = log_in, node
        self._channels: list[SimulatedChannel] = []

    def start(self, line: str, text: Sequence[bytes] = ()) -> SimulatedChannel:
        """Run a shell line."""
        connection, self._unused = self._unused or self._log_in(self._node), None
        connection.sendall(f"{line}\n".encode())
        connection.setblocking(False)
        channel = SimulatedChannel(connection)
        self._channels.append(channel)
        for piece in text:
            channel.write(piece)
        return channel

    def close(self) -> None:
        """Close the connection."""
        if self._unused is not None:
            self._unused.close()
        for channel in self._channels:
            channel.close()


class SimulatedTransport:
    """Reaches all nodes through one socket of this machine."""

    def __init__(self, path: str, timeout: float) -> None:
        self._path, self._timeout = path, timeout

    def connect(self, node: Node) -> SimulatedConnection:
        """Log in. Raises NodeError."""
        try:
            first = self._log_in(node)
        except ConnectionRefusedError:
            failure = NodeFailure(node.host, "refused", "it refuses the login")
            raise NodeError((failure,)) from None
        except OSError as error:
            raise NodeError((NodeFailure(node.host, "timeout", str(error)),)) from None
        return SimulatedConnection(first, self._log_in, node)

    def _log_in(self, node: Node) -> socket.socket:
        """Log in. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(self._timeout)
        try:
            connection.connect(self._path)
            connection.sendall(f"{node.host}\n".encode())
            if connection.recv(1) != ACCEPTED:
                raise ConnectionRefusedError
        except OSError:
            connection.close()
            raise
        connection.settimeout(None)
        return connection

    def close(self) -> None:
        """Nothing is shared."""


def make(cluster: Cluster) -> SimulatedTransport:
    """Return the transport that connects to each node."""
    return SimulatedTransport(os.environ[PATH], cluster.ssh.connect_timeout)


def make_tree(cluster: Cluster) -> TreeTransport:
    """Return the transport whose nodes connect to other nodes."""
    return TreeTransport(cluster, make(cluster))


FLAT = TransportType(make, summary="a simulated cluster")
TREE = TransportType(make_tree, summary="a simulated cluster, as a tree", through_nodes=True)
