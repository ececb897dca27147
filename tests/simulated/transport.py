"""The transport to a simulated cluster, as a plugin has one."""

from __future__ import annotations

import os
import socket
import struct
import threading

from dslaunch.plugin import Cluster, Node, NodeError, NodeFailure, TransportType

PATH = "SIMULATED_CLUSTER"
"""The environment variable with the path of the server's socket."""
ACCEPTED, REFUSED = b"+", b"-"
"""What a node answers to a login."""
SIZE = struct.Struct(">I")
"""Before the host and the shell line: its length in bytes."""
PIECE = 256 * 1024


class SimulatedChannel:
    """The program on a node is at the other end of a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._ended = threading.Event()

    def read(self) -> bytes:
        """Wait for output and return it; empty at its end."""
        try:
            data = self._socket.recv(PIECE)
        except OSError:
            data = b""
        if not data:
            self._ended.set()
        return data

    def write(self, data: bytes) -> None:
        """Send all of `data`. Raises OSError."""
        self._socket.sendall(data)

    def close_input(self) -> None:
        """Let the program read the end of its input."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._ended.set()

    def close(self) -> None:
        """End the connection."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            self._ended.set()
        self._socket.close()

    def wait(self, timeout: float) -> int | None:
        """Return no exit code: the node does not tell any."""
        self._ended.wait(timeout)
        return None

    def stderr(self) -> str:
        """Return nothing."""
        return ""


class SimulatedConnection:
    """A node that has logged us in."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def start(self, line: str) -> SimulatedChannel:
        """Run a shell line, one for each connection."""
        _send_text(self._socket, line)
        return SimulatedChannel(self._socket)

    def close(self) -> None:
        """Close the connection."""
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
