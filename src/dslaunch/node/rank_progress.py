"""Whether the ranks of a node make progress, and what they do if not: for a run that no launcher
watches.

Progress is what a launcher counts too (`run/hang_watch.py`): output, the numbers of the ranks' last
collectives, and work that ends without the others; where no rank has collectives, the use of the
CPU. Time for which a rank was ready to run and waited for a CPU does not count, up to a limit. What
the node knows of a hang is recorded in the run's directory, and judged where a launcher reads it
(`run/kept_hang.py`).
"""

from __future__ import annotations

import contextlib
import threading
import time

from dslaunch.node import collectives, network, run_files, stacks
from dslaunch.node.cpu_waits import CpuWaits
from dslaunch.node.own_work import OwnWork, RankWork

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from dslaunch.node.agent import Agent

LOOK, LOOKS, LEAST = 5.0, 4, 0.5
"""Seconds between two looks at the numbers, at most; looks within a timeout, at least; seconds
between two looks, at least."""
FOR_STACKS, FOR_RECORDS = 10.0, 4.0
"""Seconds for the ranks to answer what they do; a stopped one does not answer at all."""
FOR_QUESTIONS = 18.0
"""Seconds for the questions about GPUs and NCCL, which have separate timeouts."""
MOST_PAIRED = 512
"""Nodes of a run that connect to each other, at most: their ports are one short message."""


class Quiet:
    """For how many seconds the ranks of a node have made no progress, by each kind of it."""

    def __init__(self, idle: float, printed: float, moved: Optional[float]) -> None:
        self.idle = idle
        """Since one printed or used the CPU."""
        self.printed = printed
        """Since one printed."""
        self.moved = moved
        """Since one entered or completed a collective, or worked on its own; None: no numbers are
        known."""


def quiet_seconds(nodes: Tuple[Quiet, ...]) -> float:
    """Return for how many seconds no rank of these nodes has made progress; 0.0: of no node."""
    moved = [node.moved for node in nodes if node.moved is not None]
    if moved:
        return min([*moved, *(node.printed for node in nodes)])
    return min((node.idle for node in nodes), default=0.0)


class RankProgress:
    """Watches the ranks of this node. Never waits: other threads ask them."""

    def __init__(self, agent: Agent, hang: Dict[str, Any]) -> None:
        """`hang`: `timeout` in seconds, and what the node finds out about a hang: its answers to
        `questions`, and which other nodes it can connect to (all `hosts`, `addresses` by host,
        and `connect`, the seconds for it)."""
        self.limit: float = hang["timeout"]
        self.port = 0
        """Where this node listens for the others, once it has recorded what its ranks do."""
        self._hang = hang
        self._agent = agent
        self._interval = max(min(LOOK, self.limit / LOOKS), LEAST)
        self._began = self._looked = self._moved = time.monotonic()
        self._numbers: Dict[str, Any] = {}
        self._cpu = CpuWaits()
        self._own_work = OwnWork()
        self._compared = self._looked
        self._asking: Optional[_Work] = None
        self._recording: Optional[_Work] = None
        self._dialing: Optional[_Work] = None

    def quiet(self) -> Quiet:
        """Return for how long there has been no progress."""
        now = time.monotonic()
        moved = self._cpu.own(now - self._moved) if self._numbers else None
        printed = self._cpu.own(now - self._agent.activity.spoken)
        return Quiet(self._agent.idle, printed, moved)

    def tick(self, now: float) -> None:
        """Ask the ranks for their numbers when it is time, and compare those that have arrived."""
        if self._asking is not None and not self._asking.is_alive():
            self._take(self._asking.found or {})
            self._asking = None
        if self._asking is None and now - self._looked >= self._interval:
            self._looked = now
            self._asking = _Work(lambda: self._ask("status", self._interval / 2))

    def record(self) -> None:
        """Begin to record what the ranks do, and to listen for the other nodes."""
        self._dialing = None
        self._recording = _Work(self._record)

    @property
    def recorded(self) -> bool:
        """Return whether that is finished, or has failed."""
        return self._recording is not None and not self._recording.is_alive()

    def dial(self, ports: List[int]) -> None:
        """Begin to connect to the other nodes, at the port of each; 0: it does not listen."""
        port_of = dict(zip(self._hang["hosts"], ports))  # noqa: B905 - not in 3.8
        self._dialing = _Work(lambda: self._dial(port_of))

    @property
    def dialed(self) -> bool:
        """Return whether that is finished, or has failed."""
        return self._dialing is not None and not self._dialing.is_alive()

    def _take(self, answers: Dict[str, Any]) -> None:
        now = time.monotonic()
        for rank, answer in answers.items():
            numbers = _numbers(answer)
            if numbers and self._numbers.get(rank) != numbers:
                self._numbers[rank] = numbers
                self._moved = now
        works = {
            int(rank): RankWork(answer["transferred"], answer.get("compiled"))
            for rank, answer in answers.items()
        }
        if self._own_work.take(works, now):
            self._moved = now
        progress = max(self._moved, self._agent.activity.spoken) > self._compared
        waited = {rank: answer["waited"] for rank, answer in answers.items()}
        self._cpu.take(waited, progress=progress)
        self._compared = now

    def _ask(self, what: str, timeout: float) -> Dict[str, Any]:
        ranks, directory = self._agent.ranks, self._agent.directory
        if ranks is None or directory is None:
            return {}
        return collectives.collect(ranks.pids(), directory, what, timeout)

    def _record(self) -> Optional[Dict[str, Any]]:
        ranks = self._agent.ranks
        if ranks is None:
            return None
        answering = _Work(lambda: self._agent.requests.answers(self._hang["questions"]))
        # before the stacks: a process that writes its stack answers nothing else
        records = self._ask("full", FOR_RECORDS)
        found = {
            "time": time.time(),
            "seconds": time.monotonic() - self._began,
            "collectives": records,
            "stacks": stacks.collect(ranks.pids(), FOR_STACKS),
        }
        answering.join(FOR_QUESTIONS)
        found["answers"] = answering.found or {}
        self._write(found)
        self.port = network.listen(self._listening())["port"] or 0
        return found

    def _listening(self) -> Dict[str, Any]:
        # an ephemeral port, as collectives use them: a firewall may let only these pass;
        # instead: a hang before this one may have passed
        return {"ports": [0], "token": self._agent.run, "instead": True}

    def _dial(self, ports: Dict[str, int]) -> None:
        """Record which of the other nodes that listen cannot be connected to."""
        targets = {
            host: [address, ports[host]]
            for host, address in self._hang["addresses"].items()
            if ports.get(host) and host != self._agent.host
        }
        seconds = self._hang["connect"]
        asked = {"targets": targets, "token": self._agent.run, "timeout": seconds}
        dialed = network.dial(asked)
        unreachable = [host for host, answer in dialed.items() if answer.get("error")]
        assert self._recording is not None
        self._recording.join()
        if self._recording.found is not None:
            self._write({**self._recording.found, "unreachable": unreachable})

    def _write(self, found: Dict[str, Any]) -> None:
        assert self._agent.directory is not None
        run_files.write(self._agent.directory, run_files.HANG, self._agent.secrets.values(found))


def _numbers(answer: Dict[str, Any]) -> Tuple[Any, ...]:
    """Return the numbers of a rank's collectives, by what its own process says; (): none."""
    told = answer.get("told") or {}
    groups, transfers = told.get("groups"), told.get("transfers")
    if not isinstance(groups, list):
        return ()
    known = [each for each in groups if isinstance(each, dict) and "enqueued" in each]
    if not known and not transfers:
        return ()
    names = ("id", "enqueued", "started", "completed")
    numbers = [tuple(group.get(name) for name in names) for group in known]
    return (answer["pid"], transfers, *numbers)


class _Work(threading.Thread):
    """Work in a thread, since it may take long."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.found: Any = None
        """What the work has returned; None: it is not finished, or has failed."""
        with contextlib.suppress(RuntimeError):  # no more threads can be started
            self.start()

    def join(self, timeout: Optional[float] = None) -> None:
        """Wait for the work, if it has begun."""
        if self.ident is not None:
            super().join(timeout)

    def run(self) -> None:
        """Do the work. What ranks answer must not end the agent, whatever it is."""
        try:
            self.found = self._work()
        except Exception:  # noqa: BLE001 - see above; the next look may succeed
            self.found = None
