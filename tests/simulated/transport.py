"""The transport to a simulated cluster, as a plugin has one."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Sequence

from dslaunch.plugin import (
    Cluster,
    End,
    Node,
    NodeError,
    NodeFailure,
    QueueingChannel,
    TransportType,
)

PATH = "SIMULATED_CLUSTER"
"""The environment variable with the path of the server's socket."""
ACCEPTED, REFUSED = b"+", b"-"
"""What a node answers to a login."""
SIZE = struct.Struct(">I")
"""Before the host and the shell line: its length in bytes."""
PIECE = 256 * 1024


class SimulatedChannel(QueueingChannel):
    """The program on a node is at the other end of a socket."""

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
        self.read_on()
        if not self.wanted:
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
    """A node that has logged us in."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._channel: SimulatedChannel | None = None

    def start(self, line: str, text: Sequence[bytes] = ()) -> SimulatedChannel:
        """Run a shell line, one for each connection."""
        _send_text(self._socket, line)
        self._socket.setblocking(False)
        self._channel = SimulatedChannel(self._socket)
        for piece in text:
            self._channel.write(piece)
        return self._channel

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()
        else:
            self._socket.close()


class SimulatedTransport:
    """Reaches all nodes through one socket of this machine."""

    def __init__(self, path: str, timeout: float) -> None:
        self._path, self._timeout = path, timeout

    def connect(self, node: Node) -> SimulatedConnection:
        """Log in. Raises NodeError."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(self._timeout)
        try:
            connection.connect(self._path)
            _send_text(connection, node.host)
            answer = connection.recv(1)
        except OSError as error:
            connection.close()
            raise NodeError((NodeFailure(node.host, "timeout", str(error)),)) from None
        if answer != ACCEPTED:
            connection.close()
            raise NodeError((NodeFailure(node.host, "refused", "it refuses the login"),))
        connection.settimeout(None)
        return SimulatedConnection(connection)

    def close(self) -> None:
        """Nothing is shared."""


def _send_text(connection: socket.socket, text: str) -> None:
    data = text.encode()
    connection.sendall(SIZE.pack(len(data)) + data)


def make(cluster: Cluster) -> SimulatedTransport:
    """Return the transport."""
    return SimulatedTransport(os.environ[PATH], cluster.ssh.connect_timeout)


TRANSPORT = TransportType(make, summary="a simulated cluster")
