"""The node's end of a connection: it copies between its own streams and the agent's socket.

The agent is not a child of the connection and outlives it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable

    from dslaunch.node.agent import Agent

PIECE = 256 * 1024
REST = 1.0
"""Seconds for which nothing is accepted after an error."""
AT_ONCE = 16
"""Connections that are accepted before the agent does something else."""


def bridge(agent: socket.socket) -> None:
    """Copy standard input to the agent and its messages to standard output, until either ends.

    Each direction has a thread: a launcher that does not read can still send.
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


class Door:
    """A listening socket in the agent's loop.

    After an error, such as too many open files, it accepts nothing for `REST` seconds: pending
    connections would otherwise keep the loop busy.
    """

    def __init__(
        self, server: socket.socket, agent: Agent, welcome: Callable[[socket.socket, Any], None]
    ) -> None:
        """`welcome` is called with each new connection and its address."""
        server.setblocking(False)
        self.server, self.agent, self.welcome = server, agent, welcome
        self._open_at = 0.0
        self._is_open = False
        self.tick(time.monotonic())

    def tick(self, now: float) -> None:
        """Accept again after a rest."""
        if not self._is_open and now >= self._open_at:
            self._is_open = True
            self.agent.loop.watch(self.server.fileno(), self._accept)

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
        self.agent.loop.ignore(self.server.fileno())
        self._is_open = False
        self._open_at = time.monotonic() + REST
