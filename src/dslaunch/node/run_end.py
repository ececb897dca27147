"""The end of a run on a node: TERM, then KILL, until no process of the run lives there."""

from __future__ import annotations

import os
import time

from dslaunch.node import cgroup, frames, processes

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    import signal
    from typing import Any, Optional, Set

    from dslaunch.node.agent import Agent
else:
    import _signal as signal  # why not `signal`: see paths.py

STRAY_GRACE = 2.0
"""Seconds between TERM and KILL of what the ranks have left behind."""


class RunEnd:
    """How far the end of the run is on this node."""

    def __init__(self, agent: Agent) -> None:
        self.group: Optional[str] = None
        """The control group of the ranks. Without one, the ranks are known as descendants of the
        agent and by their environment."""
        self.deadline: Optional[float] = None
        """When the processes that were asked to end are killed; None: they were not asked."""
        self.done = False
        """Whether all processes of the run have ended here."""
        self.done_at: Optional[float] = None
        """When that was found out."""
        self._agent = agent

    def begin(self, grace: float, why: str, **cause: Any) -> None:
        """End the ranks: TERM, and KILL after `grace` seconds. A second call can only shorten that.

        `cause`: see `Agent.end`.
        """
        deadline = time.monotonic() + grace
        ranks = self._agent.ranks
        if ranks is None or self.done:
            return
        if self.deadline is None:
            self._agent.say({"event": "ending", "rank": frames.NO_RANK, "error": why, **cause})
            if grace:
                ranks.ask_to_end()
            self.deadline = deadline
        self.deadline = min(deadline, self.deadline)

    def advance(self) -> None:
        """Continue the end: all started processes, then what they left, then the final check."""
        ranks = self._agent.ranks
        assert ranks is not None
        if self.deadline is None and ranks.running():
            return
        living = self._living()
        if living and self.deadline is None:
            self.deadline = time.monotonic() + STRAY_GRACE
            processes.send(living, signal.SIGTERM, self._is_of_run)
        elif living and self.deadline is not None and time.monotonic() >= self.deadline:
            processes.send(living, signal.SIGKILL, self._is_of_run)
            if self.group is not None:
                cgroup.kill(self.group)
        elif not living and not ranks.running():
            ranks.finish()
            self._finish()

    def give_up(self, why: str) -> None:
        """Report that no process can be started on this node."""
        self._agent.say({"event": "unstarted", "rank": frames.NO_RANK, "error": why})
        self._agent.say({"event": "done", "left": []})
        self.done = True

    def _living(self) -> Set[int]:
        """Return the living processes of the run, without dslaunch's own."""
        found = processes.descendants(os.getpid())
        found |= processes.tagged(self._agent.run, self._agent.host)
        return found if self.group is None else found | processes.alive(cgroup.members(self.group))

    def _is_of_run(self, pid: int) -> bool:
        is_known = processes.is_below(pid, (os.getpid(),))
        is_known = is_known or processes.is_tagged(pid, self._agent.run, self._agent.host)
        return is_known or (self.group is not None and pid in cgroup.members(self.group))

    def _finish(self) -> None:
        """Report that all processes have ended, with those that still live nevertheless."""
        if self.group is not None:
            cgroup.remove(self.group)
        self.done, self.done_at = True, time.monotonic()
        left = processes.tagged(self._agent.run, self._agent.host)
        self._agent.say({"event": "done", "left": sorted(left)})
