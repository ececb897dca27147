"""Where the program on a node begins: an agent under its guardian, or the way to one that is there.

The guardian is the agent's parent and does nothing but wait for it. Should the agent be killed, the
guardian ends all that it started. Both leave the connection's session at once: they are no
children of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time

from dslaunch.node import bridge, files, keeping, processes
from dslaunch.node.agent import Agent

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict

LOOK = 0.05


def guard(agent: int, run: str, host: str) -> None:
    """Wait for the agent; if it was killed, end all that it started. Never returns."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(agent, signal.SIGTERM))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pid, status = os.wait()
        if pid == agent:
            break
    while status:
        living = processes.descendants(os.getpid()) | processes.tagged(run, host)
        if not living:
            break
        processes.send(living, signal.SIGKILL)
        time.sleep(LOOK)
    if status:
        files.remove_node_directories(run, host, os.path.expanduser("~"))
    os._exit(1 if status else 0)


def be_guardian(run: str, host: str, times: Dict[str, float], first: socket.socket) -> None:
    """Become the guardian of a new agent, in a session of our own. Never returns."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    processes.become_subreaper()
    agent = os.fork()
    if agent:
        first.close()
        os.dup2(null, 2)
        guard(agent, run, host)
    processes.become_subreaper()
    served = Agent(run, host, times)
    try:
        served.serve(first)
    except Exception:
        import traceback

        served.crashed(traceback.format_exc())
        raise
    os._exit(0)


def main(arguments: Dict[str, Any]) -> None:
    """Start the agent of a run, or find one that is there, and join our streams with it."""
    run, host = arguments["run"], arguments["host"]
    if arguments["join"]:
        connection = find(run, host)
    else:
        connection, other = socket.socketpair()
        if os.fork() == 0:
            connection.close()
            be_guardian(run, host, arguments["times"], other)
        other.close()
    bridge.bridge(connection)
    os._exit(0)


def find(run: str, host: str) -> socket.socket:
    """Connect to the agent of a run. Leaves with exit code 3 if there is none."""
    for directory in keeping.directories(files.all_places(os.path.expanduser("~")), host):
        if os.path.basename(directory).startswith(f"{run}.{host}."):
            with contextlib.suppress(OSError):
                return bridge.dial(directory)
    os.write(2, b"no agent of this run\n")
    os._exit(3)
