"""Which end closed a launcher's SSH connection, and whether its machine still answers."""

from __future__ import annotations

import os
import socket

from dslaunch.node import paths

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Optional, Tuple

VARIABLE = "SSH_CONNECTION"
"""sshd sets it: client address, client port, server address, server port (ssh(1))."""
_ENDED_HERE = ("04", "05", "06", "0B")
"""FIN_WAIT1, FIN_WAIT2, TIME_WAIT, CLOSING: states of the end that closed first (Linux,
include/net/tcp_states.h; RFC 9293, figure 5)."""
TIMEOUT = 2.0
"""Seconds for the launcher's machine to answer."""


def connection() -> str:
    """Return the SSH connection that started this process; empty: none did."""
    return os.environ.get(VARIABLE, "")


def address(told: str) -> Optional[str]:
    """Return the address that the launcher came from."""
    ends = _ends(told)
    return ends[0] if ends else None


def has_left(told: str) -> bool:
    """Return whether the launcher's end closed the connection and its machine answers: the launcher
    has ended then, or it would reconnect at once. False where that is unknown."""
    ends = _ends(told)
    return ends is not None and not _ended_here(ends[1], ends[2]) and _answers(ends[0], ends[1])


def _ends(told: str) -> Optional[Tuple[str, int, int]]:
    """Return the client's address and port, and the server's port."""
    words = told.split()
    if len(words) != 4 or not (words[1].isdigit() and words[3].isdigit()):
        return None
    return words[0], int(words[1]), int(words[3])


def _ended_here(client_port: int, server_port: int) -> bool:
    """Return whether this machine's end was closed first, as when its sshd was killed."""
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in paths.text_of(name, paths.WHOLE).splitlines()[1:]:
            local, remote, state = line.split()[1:4]
            ports = (int(remote.rpartition(":")[2], 16), int(local.rpartition(":")[2], 16))
            if ports == (client_port, server_port) and state in _ENDED_HERE:
                return True
    return False


def _answers(host: str, port: int) -> bool:
    """Return whether a machine answers to an attempt to connect, if only with a refusal."""
    try:
        socket.create_connection((host, port), TIMEOUT).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
