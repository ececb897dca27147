"""Gathers the output of a node's ranks: what is written within a short time is sent at once, as one
piece for each stream. A launcher pays for the pieces of all nodes, more than for their bytes.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Dict, List, Optional, Tuple

    Stream = Tuple[int, int]

LARGEST = 64 * 1024
"""Bytes of one stream that are gathered."""


class GatheredPiece:
    """Output of one stream of a rank."""

    __slots__ = ("parts", "size", "time")

    def __init__(self) -> None:
        self.parts: List[bytes] = []
        self.size = 0
        self.time = 0.0
        """When the last part was read, in seconds since the epoch."""

    def add(self, data: bytes) -> None:
        """Add what the rank has written since."""
        self.parts.append(data)
        self.size += len(data)
        self.time = time.time()


class Gatherer:
    """Output that waits until the next piece of each stream may be sent.

    What is written after a pause waits for nothing.
    """

    def __init__(self, interval: float = 0.0) -> None:
        """`interval`: seconds between two times at which output is sent, at least."""
        self.interval = interval
        self._pieces: Dict[Stream, GatheredPiece] = {}
        self._is_full = False
        self._sent = 0.0
        """When output was sent last, on the monotonic clock."""

    def add(self, rank: int, stream: int, data: bytes) -> None:
        """Add output; `take` returns it."""
        piece = self._pieces.get((rank, stream))
        if piece is None:
            piece = self._pieces[rank, stream] = GatheredPiece()
        piece.add(data)
        self._is_full = self._is_full or piece.size >= LARGEST

    @property
    def wait(self) -> Optional[float]:
        """Return the seconds until what waits is to be sent, 0 if it is now; None: nothing
        waits."""
        if not self._pieces:
            return None
        if self._is_full:
            return 0.0
        return max(0.0, self._sent + self.interval - time.monotonic())

    def is_due(self) -> bool:
        """Return whether something is to be sent now."""
        return self.wait == 0

    def take(self) -> List[Tuple[int, int, float, bytes]]:
        """Return what waits, as rank, stream, time and data, and let later output wait."""
        if not self._pieces:
            return []
        taken = [
            (rank, stream, piece.time, b"".join(piece.parts))
            for (rank, stream), piece in self._pieces.items()
        ]
        self._pieces.clear()
        self._is_full = False
        self._sent = time.monotonic()
        return taken
