"""The Unix socket of an agent, in its run's directory: for this user and root alone."""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from dslaunch.node import private

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Iterator

DIAL_TIMEOUT = 10.0
"""Seconds for an agent to take a connection."""
_CREDENTIALS = struct.Struct("3i")
"""struct ucred: process, user, group (man 7 unix)."""


def listen(directory: str) -> socket.socket:
    """Return a listening socket in a private directory, for further clients."""
    server = socket.socket(socket.AF_UNIX)
    with _short(directory) as path:
        server.bind(path)
    server.listen(8)
    return server


def dial(directory: str) -> socket.socket:
    """Return a connection to the agent of a run's directory.

    Raises OSError if the agent is gone, PermissionError if another user listens there.
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
    """Return the user at the other end of a Unix socket, as reported by the kernel."""
    about = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(about)[1]
    return user


@contextlib.contextmanager
def _short(directory: str) -> Iterator[str]:
    """Yield a path of the socket that fits into the 108 bytes of sockaddr_un (man 7 unix)."""
    with private.opened(directory) as fd:
        yield f"/proc/self/fd/{fd}/agent"
