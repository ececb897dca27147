"""The program that takes an archive from another node: it copies it to the agent of this one.

The agent checks each piece, and closes the connection after a wrong one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys

from dslaunch.node import agent_socket, directories

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict

PIECE = 256 * 1024
NO_AGENT, REFUSED = 3, 4
"""Exit codes: no agent of the run is running here; it did not take what was sent."""


def main(arguments: Dict[str, Any]) -> None:
    """Copy standard input to the agent of a run. Never returns."""
    agent = _agent(arguments["run"], arguments["host"])
    try:
        _copy(agent)
    except OSError as error:
        os.write(2, f"not taken: {error}\n".encode(errors="replace"))
        os._exit(REFUSED)
    os._exit(0)


def _agent(run: str, host: str) -> socket.socket:
    for directory in directories.find(os.path.expanduser("~"), host, run):
        with contextlib.suppress(OSError):
            return agent_socket.dial(directory)
    os.write(2, b"no agent of this run\n")
    os._exit(NO_AGENT)


def _copy(agent: socket.socket) -> None:
    """Copy all input, and wait until the agent has read it. Raises OSError."""
    source: Any = sys.stdin.buffer  # the loader may have read more than the program from it
    while True:
        data = source.read1(PIECE)
        if not data:
            break
        agent.sendall(data)
    agent.shutdown(socket.SHUT_WR)
    while agent.recv(PIECE):
        pass
