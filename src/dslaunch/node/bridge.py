"""What runs at the node's end of a connection: it joins its own streams and the agent's socket.

The agent is no child of the connection: it lives on when the connection does not.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time

from dslaunch.node import private

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable, Iterator

    from dslaunch.node.agent import Agent

PIECE = 256 * 1024
DIAL_TIMEOUT = 10.0
"""Seconds for an agent to take a connection."""
_CREDENTIALS = struct.Struct("3i")
"""struct ucred: process, user, group (man 7 unix)."""
REST = 1.0
"""Seconds that a door stays closed after an error."""
AT_ONCE = 16
"""Connections that are accepted before the agent does something else."""


def bridge(agent: socket.socket) -> None:
    """Copy standard input to the agent and what it says to standard output, until either ends.

    Each way has a thread: a launcher that does not read must still be heard.
    """
    threading.Thread(target=_inwards, args=(agent,), daemon=True).start()
    with contextlib.suppress(OSError):
        while True:
            data = agent.recv(PIECE)
            if not data:
                return
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]


def _inwards(agent: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            data = os.read(0, PIECE)
            if not data:
                break
            agent.sendall(data)
        agent.shutdown(socket.SHUT_WR)


def listen(directory: str) -> socket.socket:
    """A socket in a directory that is private, for clients that come later."""
    server = socket.socket(socket.AF_UNIX)
    with _short(directory) as path:
        server.bind(path)
    server.listen(8)
    return server


def dial(directory: str) -> socket.socket:
    """Connect to the agent whose directory it is.

    Raises OSError if it is gone, PermissionError if another user answers.
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(DIAL_TIMEOUT)
    with _short(directory) as path:
        connection.connect(path)
    if user_of(connection) != os.geteuid():
        connection.close()
        raise PermissionError(1, "another user listens there", directory)
    connection.settimeout(None)
    return connection


def user_of(connection: socket.socket) -> int:
    """The user at the other end of a Unix socket, as the kernel knows it."""
    about = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(about)[1]
    return user


@contextlib.contextmanager
def _short(directory: str) -> Iterator[str]:
    """A path of the socket that fits into the 108 bytes of sockaddr_un (man 7 unix)."""
    with private.opened(directory) as fd:
        yield f"/proc/self/fd/{fd}/agent"


class Door:
    """A listening socket in the agent's loop.

    After an error, such as too many open files, it rests for a moment: what waits to be accepted
    would otherwise keep the loop busy.
    """

    def __init__(
        self, server: socket.socket, agent: Agent, welcome: Callable[[socket.socket, Any], None]
    ) -> None:
        """`welcome` gets each new connection and the address that it comes from."""
        server.setblocking(False)
        self.server, self.agent, self.welcome = server, agent, welcome
        self._open_at = 0.0
        self._is_open = False
        self.tick(time.monotonic())

    def tick(self, now: float) -> None:
        """Open again after a rest."""
        if not self._is_open and now >= self._open_at:
            self._is_open = True
            self.agent.listen(self.server.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, address = self.server.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:
                self._rest()
                return
            self.welcome(connection, address)

    def _rest(self) -> None:
        self.agent.ignore(self.server.fileno())
        self._is_open = False
        self._open_at = time.monotonic() + REST
