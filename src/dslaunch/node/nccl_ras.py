"""What NCCL itself reports of the communicators of a job (RAS, since NCCL 2.24).

A thread of every rank answers on a port of the node, about all ranks of the job (NCCL user guide,
"RAS"). The port is read only if this user listens there: any other could have taken it before.
"""

from __future__ import annotations

import os
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Optional

PORT = 28028
"""NCCL's default; `NCCL_RAS_ADDR` changes it."""
MOST = 256 * 1024
TIMEOUT = 6.0
"""Seconds for the report; NCCL waits 3 of them for ranks that do not answer."""
REQUEST = b"timeout 3\nverbose status\n"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS = "0A"


def report() -> Optional[str]:
    """Return NCCL's report; None if no process of this user listens. Raises OSError."""
    if not _is_ours():
        return None
    deadline = time.monotonic() + TIMEOUT
    found = b""
    with socket.create_connection(("localhost", PORT), timeout=TIMEOUT) as connection:
        connection.sendall(REQUEST)
        while len(found) < MOST and time.monotonic() < deadline:
            piece = connection.recv(MOST - len(found))
            if not piece:
                break
            found += piece
    return found.decode("utf-8", "replace")


def _is_ours() -> bool:
    """Return whether all processes that listen on the port are this user's, and there is one."""
    users = {user for table in _TABLES for user in _listeners(table)}
    return users == {os.geteuid()}


def _listeners(table: str) -> "list[int]":
    """Return the users that listen on the port (proc(5), /proc/net/tcp)."""
    try:
        with open(table) as file:
            rows = [line.split() for line in file.readlines()[1:]]
    except OSError:
        return []
    own = f":{PORT:04X}"
    return [int(row[7]) for row in rows if row[1].endswith(own) and row[3] == _LISTENS]
