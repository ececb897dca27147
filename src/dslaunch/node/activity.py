"""Idle time of the ranks: one that neither prints nor computes may wait forever."""

from __future__ import annotations

import os
import time

from dslaunch.node import processes

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Collection, Optional

BUSY = 0.05
"""The share of one CPU below which the ranks of a node count as idle: their threads only poll. The
first rank polls 100 times a second while it waits for the others to join (`waitForWorkers` in
PyTorch's TCPStore), which takes 2 %."""
_TICKS = os.sysconf("SC_CLK_TCK")


class Activity:
    """When a node's ranks last printed or computed."""

    def __init__(self) -> None:
        self._last = self._sampled = self.spoken = time.monotonic()
        self._seconds: Optional[float] = None

    def spoke(self) -> None:
        """Note that a rank printed."""
        self._last = self.spoken = time.monotonic()

    def idle(self, pids: Collection[int]) -> float:
        """Return seconds since a rank, or a child of one, printed or used the CPU. Ask now and
        then."""
        now = time.monotonic()
        tree = {*pids, *processes.descendants(*pids)}
        seconds = sum(map(_cpu_seconds, tree))
        before, elapsed = self._seconds, now - self._sampled
        self._seconds, self._sampled = seconds, now
        if before is None or abs(seconds - before) > BUSY * elapsed:
            self._last = now
        return now - self._last


def _cpu_seconds(pid: int) -> float:
    fields = processes.stat(pid)
    # utime and stime are fields 14 and 15 of the line, 11 and 12 after the name (man 5 proc)
    return (int(fields[11]) + int(fields[12])) / _TICKS if fields else 0.0
