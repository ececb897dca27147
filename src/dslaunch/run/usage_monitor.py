"""Measure the nodes of a run again and again, over the connections to their agents."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Empty
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.protocol.usage import COUNTERS, MOST_OUTPUT, NodeCounters
from dslaunch.run.asked import Asked
from dslaunch.run.collective_times import CollectiveTimes
from dslaunch.run.events import Line
from dslaunch.run.late_ranks import Lateness
from dslaunch.run.lines import printable
from dslaunch.run.progress import Progress, RunProgress
from dslaunch.run.usage import GpuUsage, NodeUsage, RankUsage
from dslaunch.run.usage_rates import Reading, usage_between

if TYPE_CHECKING:
    from dslaunch.errors import NodeFailure
    from dslaunch.run.reach import ReachedNodes
    from dslaunch.run.session import Session

ASK_AGAIN = 30.0
"""Seconds after which a node that has not answered is asked again."""
MANY_RANKS, SHORT_OUTPUT = 64, 160
"""With more ranks, fewer bytes of the output of each are asked for: a slow link must carry them."""


class RankSample(Struct, frozen=True):
    """One rank at one time."""

    rank: int
    host: str
    usage: RankUsage
    gpu: GpuUsage | None = None
    """Its GPU, where the node runs as many ranks as it has GPUs."""
    progress: Progress | None = None
    step_seconds: float | None = None
    """Seconds per step, from the last two measurements between which its step changed."""
    last_line: str = ""


class UsageSample(Struct, frozen=True):
    """All nodes of a run at one time."""

    time: float
    """Seconds since the epoch."""
    nodes: tuple[NodeUsage, ...]
    """Those that have answered twice by then, in the order of the run."""
    ranks: tuple[RankSample, ...]
    """By their number."""
    unanswered: tuple[str, ...] = ()
    """Nodes that have not answered in time."""
    progress: Progress | None = None
    """Of the lowest rank that prints any."""
    lateness: Lateness | None = None
    """Who enters collectives late; None: unknown."""
    lateness_interval: float | None = None
    """Seconds after which the ranks are asked for it again."""


class _Step(Struct, frozen=True):
    step: int
    time: float
    seconds: float | None = None


class UsageMonitor:
    """Asks nodes for their counters, round by round, and makes samples of them."""

    def __init__(
        self, formats: Sequence[str] = (), jobs: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """`formats`: `Cluster.progress`. `jobs`: of a SLURM job, the numbers that its ranks on each
        node have in their environment."""
        self.progress = RunProgress(formats)
        self._jobs = jobs or {}
        self.collectives = CollectiveTimes()
        self._order: dict[str, None] = {}
        self._asked: Asked[NodeCounters] = Asked()
        self._readings: dict[str, Reading] = {}
        self._usages: dict[str, NodeUsage] = {}
        self._last_lines: dict[int, str] = {}
        self._steps: dict[int, _Step] = {}

    def begin(self, sessions: Iterable[Session], *, collectives: bool = True) -> None:
        """Ask the nodes; one that has not answered yet is not asked again for a while.

        `collectives`: also for the times of collectives, when it is time for these.
        """
        several = list(sessions)
        ranks = sum(len(session.ranks) for session in several)
        output = MOST_OUTPUT // 2 if ranks <= MANY_RANKS else SHORT_OUTPUT
        for session in several:
            self._order[session.host] = None
            if self._asked.waits_for(session.host, at_most=ASK_AGAIN):
                continue
            jobs = list(self._jobs.get(session.host, ()))
            answer = session.request("usage", COUNTERS, output=output, jobs=jobs)
            self._asked.add(session, answer)
        if collectives:
            self.collectives.begin(several)

    @property
    def complete(self) -> bool:
        """Return whether all nodes that were asked have answered."""
        return self._asked.complete and self.collectives.asked.complete

    def wait(self, seconds: float) -> None:
        """Wait until all have answered, at most so many seconds."""
        deadline = time.monotonic() + seconds
        self._asked.wait(seconds)
        self.collectives.asked.wait(deadline - time.monotonic())

    def end(self) -> UsageSample:
        """Return what has arrived since `begin`."""
        now = time.time()
        self._usages.clear()
        for session, counters in self._asked.take():
            self._take(Reading(now, session.host, _own_ranks(counters, session.ranks)))
        lateness = self.collectives.end()
        shares = lateness.shares if lateness is not None else {}
        nodes = tuple(
            _with_lateness(self._usages[host], shares)
            for host in self._order
            if host in self._usages
        )
        ranks = sorted(
            (rank for node in nodes for rank in self._ranks(node)), key=lambda each: each.rank
        )
        return UsageSample(
            time=now,
            nodes=nodes,
            ranks=tuple(ranks),
            unanswered=self._asked.hosts,
            progress=self.progress.latest,
            lateness=lateness,
            lateness_interval=self.collectives.interval,
        )

    def forget(self, host: str) -> None:
        """Drop a node that has left the run."""
        self._asked.forget(host)
        self.collectives.forget(host)
        self._order.pop(host, None)

    def _take(self, reading: Reading) -> None:
        before = self._readings.get(reading.host)
        self._readings[reading.host] = reading
        for rank, text in reading.counters.output.items():
            self._read_output(reading, int(rank), text)
        usage = usage_between(before, reading) if before is not None else None
        if usage is not None:
            self._usages[reading.host] = usage

    def _read_output(self, reading: Reading, rank: int, text: str) -> None:
        for piece in text.replace("\r", "\n").split("\n"):
            shown = printable(piece.encode())
            if not shown.strip():
                continue
            self._last_lines[rank] = shown
            self.progress.note(Line(reading.time, reading.host, rank, "stdout", shown))
        progress = self.progress.of(rank)
        if progress is not None and progress.step is not None:
            self._steps[rank] = _after(self._steps.get(rank), progress.step, reading.time)

    def _ranks(self, node: NodeUsage) -> Iterable[RankSample]:
        in_order = sorted(node.ranks, key=lambda each: each.rank)
        paired = len(node.gpus) == len(in_order)
        for at, usage in enumerate(in_order):
            step = self._steps.get(usage.rank)
            yield RankSample(
                rank=usage.rank,
                host=node.host,
                usage=usage,
                gpu=node.gpus[at] if paired else None,
                progress=self.progress.of(usage.rank),
                step_seconds=step.seconds if step is not None else None,
                last_line=self._last_lines.get(usage.rank, ""),
            )


def _with_lateness(node: NodeUsage, shares: Mapping[int, float]) -> NodeUsage:
    """Return a node with the lateness of its ranks, as far as it is known."""
    ranks = tuple(
        replace(rank, late=round(shares[rank.rank], 4)) if rank.rank in shares else rank
        for rank in node.ranks
    )
    return replace(node, ranks=ranks)


def _own_ranks(counters: NodeCounters, ranks: range) -> NodeCounters:
    """Return the counters without ranks that the node does not have."""
    own = tuple(each for each in counters.ranks if each.rank in ranks)
    output = {rank: text for rank, text in counters.output.items() if int(rank) in ranks}
    return counters.model_copy(update={"ranks": own, "output": output})


def _after(before: _Step | None, step: int, now: float) -> _Step:
    if before is None or step < before.step:
        return _Step(step, now)
    if step == before.step:
        return before
    return _Step(step, now, (now - before.time) / (step - before.step))


class UsageSource:
    """The nodes of a run that was started before, to be measured."""

    def __init__(
        self,
        reached: ReachedNodes,
        formats: Sequence[str] = (),
        jobs: Mapping[str, Sequence[str]] | None = None,
        progress: Callable[[], Progress | None] = lambda: None,
    ) -> None:
        """`formats`, `jobs`: as `UsageMonitor`. `progress` returns what other output than that of
        the nodes says."""
        self._reached = reached
        self._monitor = UsageMonitor(formats, jobs)
        self._progress = progress

    @property
    def failures(self) -> Mapping[str, NodeFailure]:
        """Return why nodes could not be reached, by name."""
        return self._reached.failures

    @property
    def over(self) -> bool:
        """Return whether no node has an agent of the run any more."""
        return all(session.over for session in self._reached.sessions.values())

    def sample(self, timeout: float) -> UsageSample:
        """Measure all nodes, at most `timeout` seconds."""
        living = []
        for host, session in self._reached.sessions.items():
            if session.over:
                self._monitor.forget(host)
            else:
                living.append(session)
        self._drop_arrivals()
        self._monitor.begin(living)
        self._monitor.wait(timeout)
        sample = self._monitor.end()
        return replace(sample, progress=sample.progress or self._progress())

    def _drop_arrivals(self) -> None:
        """Empty the inbox, which no other code reads: a full one would block the connections."""
        while True:
            try:
                self._reached.inbox.get_nowait()
            except Empty:
                return
