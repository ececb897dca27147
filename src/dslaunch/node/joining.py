"""Whether the ranks of a node have joined the rendezvous, by their connections to it."""

from __future__ import annotations

from dslaunch.node import network, processes

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Collection, Dict

INTERVAL = 1.5
"""Seconds between two looks. Rare: each time the kernel walks its whole table of connections, which
takes milliseconds."""


class Joining:
    """Looks for a connection to the rendezvous for every rank, until there is one."""

    def __init__(self, port: int, ranks: int) -> None:
        """`port`: of the rendezvous. `ranks`: of this node."""
        self._port, self._ranks = port, ranks
        self.is_over = False
        """Whether all have joined."""
        self._looked = 0.0
        self._families: Dict[int, processes.Descendants] = {}

    def look(self, pids: Collection[int], now: float) -> bool:
        """Return whether all ranks have joined since the last look. `pids`: the processes of those
        that run; `now`: on the monotonic clock."""
        if self.is_over or now - self._looked <= INTERVAL:
            return False
        self._looked = now
        self.is_over = self._have_joined(pids)
        if self.is_over:
            self._families.clear()
        return self.is_over

    def _have_joined(self, pids: Collection[int]) -> bool:
        """Return whether there is a connection for every rank. Connections are not counted while a
        rank has no socket, as while it imports torch."""
        if len(pids) < self._ranks or not all(map(self._has_socket, pids)):
            return False
        return network.established(self._port) >= self._ranks

    def _has_socket(self, pid: int) -> bool:
        family = self._families.setdefault(pid, processes.Descendants(pid))
        return processes.has_socket(family)
