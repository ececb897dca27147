"""CPU time and memory of each rank, with the processes that it has started."""

from __future__ import annotations

import os

from dslaunch.node import processes, procfs

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional, Set

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class RankMeter:
    """Reads the usage of the ranks again and again; processes of others are inspected once."""

    def __init__(self) -> None:
        self._family: Optional[processes.Descendants] = None

    def read(self, pids: Dict[int, int]) -> List[Dict[str, Any]]:
        """Return CPU seconds and resident bytes by rank. `pids`: the process of each rank.

        The seconds of processes that have ended count once their parent has collected them. Of the
        main thread of the busiest process also for how many seconds it `ran`, and `waited` for a
        CPU: a rank that waits for others does neither.
        """
        roots = tuple(sorted(pids.values()))
        if self._family is None or self._family.roots != roots:
            self._family = processes.Descendants(*roots)
        stats = self._family.stats()
        trees = _by_root(stats, set(roots))
        found = []
        for rank, pid in sorted(pids.items()):
            if pid not in stats:
                continue
            tree = [stats[member] for member in trees[pid]]
            cpu = sum(map(_ticks, tree)) / _TICKS
            memory = sum(int(fields[21]) for fields in tree) * _PAGE
            busiest = max((member for member in trees[pid]), key=lambda each: _ticks(stats[each]))
            ran, waited = procfs.scheduled(busiest)
            found.append(
                {
                    "rank": rank,
                    "pid": pid,
                    "cpu": cpu,
                    "memory": memory,
                    "busiest": busiest,
                    "ran": ran,
                    "waited": waited,
                }
            )
        return found


def _ticks(fields: List[str]) -> int:
    # utime, stime, cutime and cstime are fields 14 to 17 of the line, 11 to 14 after the name
    # (man 5 proc)
    return int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])


def _by_root(stats: Dict[int, List[str]], roots: Set[int]) -> Dict[int, List[int]]:
    """Return the processes at and below each root; those below an inner root are its own."""
    trees: Dict[int, List[int]] = {root: [] for root in roots}
    for pid in stats:
        at = pid
        while at not in roots and at in stats:
            at = int(stats[at][1])
        if at in roots:
            trees[at].append(pid)
    return trees
