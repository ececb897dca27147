"""What the nodes of a detached run find out about a hang before they end their ranks.

First each node records what its ranks do, and listens at a port. Then each connects to all others.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Collection, Dict, List, Set

RECORD_TIMEOUT = 25.0
"""Seconds for all nodes to record what their ranks do, and what they know of GPUs and NCCL."""
DIAL_TIMEOUT = 8.0
"""Seconds for all nodes to connect to each other."""


class HangInquiry:
    """How far all nodes are, as the first node knows. Pure."""

    def __init__(self, now: float) -> None:
        """`now`: when the hang was noticed, on the monotonic clock."""
        self.dials = False
        """Whether the nodes have been asked to connect to each other."""
        self._began = now
        self._finished: Set[str] = set()
        self._ports: Dict[str, int] = {}

    def recorded(self, host: str, port: int) -> None:
        """Note that a node has recorded what its ranks do, and listens at a port; 0: at none."""
        self._ports[host] = port
        if not self.dials:
            self._finished.add(host)

    def dialed(self, host: str) -> None:
        """Note that a node has tried to connect to all others."""
        if self.dials:
            self._finished.add(host)

    def begin_dialing(self, hosts: Collection[str], now: float) -> List[int]:
        """Begin the second part; return the port of each node, in this order; 0: none."""
        self.dials, self._began = True, now
        self._finished.clear()
        return [self._ports.get(host, 0) for host in hosts]

    def is_finished(self, hosts: Collection[str], now: float) -> bool:
        """Return whether all of these nodes have finished this part, or their time is over."""
        limit = DIAL_TIMEOUT if self.dials else RECORD_TIMEOUT
        return self._finished >= set(hosts) or now - self._began > limit
