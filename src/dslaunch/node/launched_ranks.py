"""The ranks that a launcher starts: found among its descendants, and watched to their end."""

from __future__ import annotations

import os

from dslaunch.node import processes

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Callable, Collection, Dict, Optional, Set

    from dslaunch.node.agent import Agent

SWEEP_INTERVAL = 0.1
"""Seconds between two searches for the ranks of a launcher."""
LONGEST_PID = 10
"""Digits of a process number."""


class LaunchedRanks:
    """The rank processes below the launcher of a node, also those that it starts again."""

    def __init__(
        self,
        agent: Agent,
        expected: range,
        launchers: Collection[int],
        on_end: Callable[[int, Optional[int]], object],
    ) -> None:
        """`launchers`: the launcher's process, for as long as it runs. `on_end`: called with a rank
        that has ended, and its wait status; None: unknown."""
        self._agent, self._expected = agent, expected
        self._launchers, self._on_end = launchers, on_end
        self.found: Dict[int, int] = {}
        """Rank -> its latest process."""
        self._ended: Set[int] = set()
        self.polled: Set[int] = set()
        """Ranks of `found` whose end must be polled: there is no pidfd for them."""
        self._searched = 0.0
        self._below: Optional[processes.Descendants] = None

    def running(self) -> Dict[int, int]:
        """Return the processes of the ranks that have not ended: rank -> process."""
        return {rank: pid for rank, pid in self.found.items() if rank not in self._ended}

    def complete(self) -> bool:
        """Return whether all ranks are known and running."""
        return len(self.found) == len(self._expected) and not self._ended

    def watch(self, now: float) -> None:
        """Search for ranks now and then, until all are known, and look at those that must be
        polled. `now`: on the monotonic clock."""
        if now - self._searched > SWEEP_INTERVAL:
            self._searched = now
            self._search()
        for rank in self.polled:
            self._look_at(rank)

    def born(self, rank: int, data: bytes) -> None:
        """Take what a rank reports of its process, also after it was started again."""
        for word in data.split():
            is_number = len(word) <= LONGEST_PID and word.isdigit()
            # another program may write there
            if is_number and processes.is_below(int(word), self._launchers):
                self._find(rank, int(word))

    def _search(self) -> None:
        if self.complete() or not self._launchers:
            return
        launcher = next(iter(self._launchers))
        if self._below is None or self._below.roots != (launcher,):
            self._below = processes.Descendants(launcher)
        for local_rank, pid in processes.ranks_among(self._below.find()).items():
            rank = self._expected[0] + local_rank
            if rank in self._expected and (rank not in self.found or self._is_new(rank, pid)):
                self._find(rank, pid)

    def _is_new(self, rank: int, pid: int) -> bool:
        """Return whether the launcher has started this rank again."""
        return rank in self._ended and self.found[rank] != pid

    def _find(self, rank: int, pid: int) -> None:
        """Note and report a new rank. One that was started again replaces the first, whose end is
        reported before."""
        if rank in self.found and self.found[rank] == pid:
            return
        if rank in self.found:
            self._look_at(rank)
            if rank not in self._ended:
                return
        self.found[rank] = pid
        self._ended.discard(rank)
        self._agent.say({"event": "started", "rank": rank, "pid": pid})
        if not self._watch_end(rank, pid):
            self.polled.add(rank)
        self._look_at(rank)

    def _watch_end(self, rank: int, pid: int) -> bool:
        """Watch for the end of a rank, to see it before its parent collects the status. Return
        whether the kernel supports that."""
        if not hasattr(os, "pidfd_open"):  # Python < 3.9
            return False
        try:
            fd = os.pidfd_open(pid)
        except OSError:  # it has ended already, or Linux < 5.3
            return False
        self._agent.loop.watch(fd, lambda: self._seems_ended(rank, fd))
        return True

    def _seems_ended(self, rank: int, fd: int) -> None:
        """Take note of a readable pidfd: the rank has ended."""
        self._agent.loop.ignore(fd)
        os.close(fd)
        self._look_at(rank)
        if rank not in self._ended:
            self.polled.add(rank)

    def _look_at(self, rank: int) -> None:
        """Report a rank once it has ended, from its status while it is not collected yet."""
        if rank in self._ended:
            return
        status = processes.wait_status(self.found[rank])
        if status is not None or processes.stat(self.found[rank]) is None:
            self._ended.add(rank)
            self._on_end(rank, status)
