"""Whether the ranks of a node make progress, and what they do if not: for a run that no launcher
watches.

Progress is what a launcher counts too (`run/hang_watch.py`): output, and the numbers of the ranks'
last collectives; where no rank has these, the use of the CPU. What the ranks do is recorded in the
run's directory, and judged where a launcher reads it (`run/kept_hang.py`).
"""

from __future__ import annotations

import threading
import time

from dslaunch.node import collectives, run_files, stacks

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable, Dict, Optional, Tuple

    from dslaunch.node.agent import Agent

LOOK, LOOKS, LEAST = 5.0, 4, 0.5
"""Seconds between two looks at the numbers, at most; looks within a timeout, at least; seconds
between two looks, at least."""
FOR_STACKS, FOR_RECORDS = 10.0, 4.0
"""Seconds for the ranks to answer what they do; a stopped one does not answer at all."""


class Quiet:
    """For how many seconds the ranks of a node have made no progress, by each kind of it."""

    def __init__(self, idle: float, printed: float, moved: Optional[float]) -> None:
        self.idle = idle
        """Since one printed or used the CPU."""
        self.printed = printed
        """Since one printed."""
        self.moved = moved
        """Since one entered or completed a collective; None: no numbers are known."""


def quiet_seconds(nodes: Tuple[Quiet, ...]) -> float:
    """Return for how many seconds no rank of these nodes has made progress."""
    moved = [node.moved for node in nodes if node.moved is not None]
    if moved:
        return min([*moved, *(node.printed for node in nodes)])
    return min(node.idle for node in nodes)


class RankProgress:
    """Watches the ranks of this node. Never waits: other threads ask them."""

    def __init__(self, agent: Agent, limit: float) -> None:
        """`limit`: seconds of the hang timeout."""
        self._agent = agent
        self._interval = max(min(LOOK, limit / LOOKS), LEAST)
        self._looked = self._moved = time.monotonic()
        self._numbers: Dict[str, Any] = {}
        self._asking: Optional[_Work] = None
        self._recording: Optional[_Work] = None

    def quiet(self) -> Quiet:
        """Return for how long there has been no progress."""
        now = time.monotonic()
        activity = self._agent.activity
        moved = now - self._moved if self._numbers else None
        return Quiet(self._agent.idle, now - activity.spoken, moved)

    def tick(self, now: float) -> None:
        """Ask the ranks for their numbers when it is time, and compare those that have arrived."""
        if self._asking is not None and not self._asking.is_alive():
            self._take(self._asking.found or {})
            self._asking = None
        if self._asking is None and now - self._looked >= self._interval:
            self._looked = now
            self._asking = _Work(lambda: self._ask("status", self._interval / 2))

    def record(self) -> None:
        """Begin to record what the ranks do."""
        self._recording = _Work(self._record)

    @property
    def recorded(self) -> bool:
        """Return whether that is finished, or has failed."""
        return self._recording is not None and not self._recording.is_alive()

    def _take(self, answers: Dict[str, Any]) -> None:
        for rank, answer in answers.items():
            numbers = _numbers(answer)
            if numbers and self._numbers.get(rank) != numbers:
                self._numbers[rank] = numbers
                self._moved = time.monotonic()

    def _ask(self, what: str, timeout: float) -> Dict[str, Any]:
        ranks, directory = self._agent.ranks, self._agent.directory
        if ranks is None or directory is None:
            return {}
        return collectives.collect(ranks.pids(), directory, what, timeout)

    def _record(self) -> None:
        directory, ranks = self._agent.directory, self._agent.ranks
        if directory is None or ranks is None:
            return
        # before the stacks: a process that writes its stack answers nothing else
        records = self._ask("full", FOR_RECORDS)
        found = {
            "time": time.time(),
            "collectives": records,
            "stacks": stacks.collect(ranks.pids(), FOR_STACKS),
        }
        run_files.write(directory, run_files.HANG, self._agent.secrets.values(found))


def _numbers(answer: Dict[str, Any]) -> Tuple[Any, ...]:
    """Return the numbers of a rank's collectives, by what its own process says; (): none."""
    groups = (answer.get("told") or {}).get("groups")
    if not isinstance(groups, list):
        return ()
    known = [each for each in groups if isinstance(each, dict) and "enqueued" in each]
    names = ("id", "enqueued", "started", "completed")
    return tuple((answer["pid"], *(group.get(name) for name in names)) for group in known)


class _Work(threading.Thread):
    """Work in a thread, since it may take long."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.found: Any = None
        """What the work has returned; None: it is not finished, or has failed."""
        self.start()

    def run(self) -> None:
        """Do the work. What ranks answer must not end the agent, whatever it is."""
        try:
            self.found = self._work()
        except Exception:  # noqa: BLE001 - see above; the next look may succeed
            self.found = None
