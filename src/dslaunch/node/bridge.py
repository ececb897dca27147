"""What runs at the node's end of a connection: it joins its own streams and the agent's socket.

The agent is no child of the connection: it lives on when the connection does not.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Iterator

PIECE = 256 * 1024


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
    """Connect to the agent whose directory it is. Raises OSError if it is gone."""
    connection = socket.socket(socket.AF_UNIX)
    with _short(directory) as path:
        connection.connect(path)
    return connection


@contextlib.contextmanager
def _short(directory: str) -> Iterator[str]:
    """A path of the socket that fits into the 108 bytes of sockaddr_un (man 7 unix)."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/agent"
    finally:
        os.close(fd)
