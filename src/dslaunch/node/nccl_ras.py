"""What NCCL itself reports of the communicators of a job (RAS, since NCCL 2.24).

A thread of every rank answers on a port of the node, about all ranks of the job (NCCL user guide,
"RAS"). The port is read only if this user listens there: any other could have taken it before.
`NCCL_RAS_ADDR` in the environment of the ranks changes the address.
"""

from __future__ import annotations

import os
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import List, Optional, Tuple

VARIABLE = "NCCL_RAS_ADDR"
HOST, PORT = "localhost", 28028
"""NCCL's defaults."""
LAST_PORT = 65535
MOST = 256 * 1024
TIMEOUT = 6.0
"""Seconds for the report; NCCL waits 3 of them for ranks that do not answer."""
REQUEST = b"timeout 3\nverbose status\n"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS = "0A"


def report(address: str = "") -> Optional[str]:
    """Return NCCL's report; None if no process of this user listens. `address`: the value of
    `NCCL_RAS_ADDR`; "": not set. Raises OSError, and ValueError if there is no port in it."""
    host, port = host_and_port(address)
    if not _is_ours(port):
        return None
    deadline = time.monotonic() + TIMEOUT
    found = b""
    with socket.create_connection((host, port), timeout=TIMEOUT) as connection:
        connection.sendall(REQUEST)
        while len(found) < MOST and time.monotonic() < deadline:
            piece = connection.recv(MOST - len(found))
            if not piece:
                break
            found += piece
    return found.decode("utf-8", "replace")


def host_and_port(address: str) -> Tuple[str, int]:
    """Return the parts of `HOST:PORT` or `[IPV6]:PORT`; NCCL's defaults for "". Raises
    ValueError."""
    if not address:
        return HOST, PORT
    host, _, number = address.rpartition(":")
    if not number.isdecimal() or not 0 < int(number) <= LAST_PORT:
        raise ValueError(f"{VARIABLE} has no port: {address}")
    return host.strip("[]") or HOST, int(number)


def _is_ours(port: int) -> bool:
    """Return whether all processes that listen on the port are this user's, and there is one."""
    users = {user for table in _TABLES for user in _listeners(table, port)}
    return users == {os.geteuid()}


def _listeners(table: str, port: int) -> List[int]:
    """Return the users that listen on the port (proc(5), /proc/net/tcp)."""
    try:
        with open(table) as file:
            rows = [line.split() for line in file.readlines()[1:]]
    except OSError:
        return []
    own = f":{port:04X}"
    return [int(row[7]) for row in rows if row[1].endswith(own) and row[3] == _LISTENS]
