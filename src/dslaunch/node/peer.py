"""Who ended the SSH connection that a launcher had, and whether its machine still answers."""

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
    """The SSH connection that this process was started by; empty if it was none."""
    return os.environ.get(VARIABLE, "")


def address(told: str) -> Optional[str]:
    """The address that the launcher came from."""
    ends = _ends(told)
    return ends[0] if ends else None


def has_left(told: str) -> bool:
    """Whether the launcher's end closed the connection, and its machine answers: then the launcher
    has ended, or would be back at once. False where that cannot be known."""
    ends = _ends(told)
    return ends is not None and not _ended_here(ends[1], ends[2]) and _answers(ends[0], ends[1])


def _ends(told: str) -> Optional[Tuple[str, int, int]]:
    """The client's address and port, and the server's port."""
    words = told.split()
    if len(words) != 4 or not (words[1].isdigit() and words[3].isdigit()):
        return None
    return words[0], int(words[1]), int(words[3])


def _ended_here(client_port: int, server_port: int) -> bool:
    """Whether this machine's end was closed first, as when its sshd was killed."""
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in paths.text_of(name, paths.WHOLE).splitlines()[1:]:
            local, remote, state = line.split()[1:4]
            ports = (int(remote.rpartition(":")[2], 16), int(local.rpartition(":")[2], 16))
            if ports == (client_port, server_port) and state in _ENDED_HERE:
                return True
    return False


def _answers(host: str, port: int) -> bool:
    """Whether a machine answers to an attempt to connect, if only with a refusal."""
    try:
        socket.create_connection((host, port), TIMEOUT).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
