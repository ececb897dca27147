"""Work of ranks that ends without the others, for launchers and for the nodes of detached runs,
which judge hangs alike.

A rank that compiles kernels, or reads or writes a large file, enters no collective for minutes, and
is not stuck.
"""

from __future__ import annotations

import os

from dslaunch.node import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Dict, List, Mapping, Optional, Tuple

BYTES_PER_SECOND = 1 << 20
"""Of files, by one process, at least. What a hung rank still reads and writes, such as the messages
of a log or of PyTorch's store, is less by far."""
CPU_SHARE = 0.05
"""Share of one CPU that a compilation uses, at least. A rank that waits for it uses less."""
_TICKS = os.sysconf("SC_CLK_TCK")


class RankWork:
    """What the processes of one rank have done since their start."""

    def __init__(self, transferred: int, compiled: Optional[float]) -> None:
        self.transferred = transferred
        """Bytes that its own process has read and written."""
        self.compiled = compiled
        """Seconds of CPU time of all its processes, if it compiles, and of those of another job
        that builds what it waits for; None: it does not compile."""


class OwnWork:
    """What each rank had done when it was last asked. Pure."""

    def __init__(self) -> None:
        self._before: Dict[int, Tuple[float, RankWork]] = {}

    def take(self, told: Mapping[int, RankWork], now: float) -> bool:
        """Return whether one of these ranks has worked since it was last asked. `now`: on any
        clock, the same each time."""
        worked = False
        for rank, work in told.items():
            if rank in self._before:
                then, before = self._before[rank]
                worked = _has_worked(before, work, now - then) or worked
            self._before[rank] = now, work
        return worked


def _has_worked(before: RankWork, work: RankWork, seconds: float) -> bool:
    if work.transferred - before.transferred > BYTES_PER_SECOND * seconds:
        return True
    if before.compiled is None or work.compiled is None:
        return False
    return work.compiled - before.compiled > CPU_SHARE * seconds


def transferred(pid: int) -> int:
    """Return how many bytes a process has read and written (man 5 proc, `rchar` and `wchar`: what
    it receives and sends by other calls, as for collectives, does not count); 0: unknown."""
    fields = dict(line.partition(": ")[::2] for line in procfs.read(f"/proc/{pid}/io").splitlines())
    return sum(int(fields.get(name) or 0) for name in ("rchar", "wchar"))


def cpu_seconds(stat: List[str]) -> float:
    """Return the CPU time of a process and of its children that have ended, by the fields of
    `processes.stat`."""
    # utime, stime, cutime and cstime are fields 14 to 17 of the line (man 5 proc)
    return sum(map(int, stat[11:15])) / _TICKS
