"""What has arrived from the nodes and waits to be taken."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dslaunch.run.arrivals import Arrival, Away, Back
    from dslaunch.run.session import Session

INBOX_SIZE = 256
"""Pieces of output that may wait for the terminal before nodes are paused, however many there are:
at 64 KiB each, 16 MiB of memory. Half of them is left to write when nodes begin to send again."""


class Inbox(SimpleQueue["tuple[Session, Arrival]"]):
    """Events and output of all nodes, in the order of their arrival.

    Adding to it never blocks. A node that adds to a full one is paused until half is taken, which
    blocks its ranks when the connection holds as much as it can.
    """

    def __init__(self, most: int = INBOX_SIZE) -> None:
        super().__init__()
        self._most = most
        self._paused: set[Session] = set()
        self._pausing = threading.Lock()

    def add(self, session: Session, arrival: Arrival) -> None:
        """Add what has arrived from a node."""
        self.put((session, arrival))
        if self.qsize() > self._most:
            with self._pausing:
                self._paused.add(session)
                session.pause()
            # all may have been taken since, by a thread that found no node paused
            self._resume()

    def note(self, session: Session, change: Away | Back) -> None:
        """Add what was noticed of a node's connection, which pauses no node: before the ranks are
        started, nothing is taken until all nodes have answered, and thousands may have reconnected
        meanwhile."""
        self.put((session, change))

    def get(self, block: bool = True, timeout: float | None = None) -> tuple[Session, Arrival]:
        """Take the oldest; raises `queue.Empty` as any queue."""
        taken = super().get(block, timeout)
        if self._paused:
            self._resume()
        return taken

    def _resume(self) -> None:
        with self._pausing:
            if self.qsize() <= self._most // 2:
                for session in self._paused:
                    session.resume()
                self._paused.clear()
