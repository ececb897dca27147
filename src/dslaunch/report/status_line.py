"""The status line at the bottom of a terminal: what a run is doing, and since when. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from dslaunch.cluster.nodeset import fold
from dslaunch.durations import elapsed_text
from dslaunch.plural import counted
from dslaunch.report.progress_text import progress_parts
from dslaunch.run.events import Event, Line, LineBlock
from dslaunch.run.progress import RunProgress
from dslaunch.run.view import StartStep

SEPARATOR = " · "
_STEPS = {
    StartStep.PENDING: "pending",
    StartStep.CONNECTING: "connecting",
    StartStep.CHECKING: "checking nodes",
    StartStep.COPYING: "copying files",
    StartStep.STARTING: "starting",
}


def joined(parts: Sequence[str], columns: int) -> str:
    """Return parts as a line, without the last ones that do not fit; of the first one the
    beginning."""
    shown = ""
    for part in parts:
        longer = f"{shown}{SEPARATOR}{part}" if shown else part
        if len(longer) > columns:
            break
        shown = longer
    return shown or "".join(parts[:1])[: max(0, columns)]


@dataclass(slots=True)
class RunStatusLine:
    """What is known about a run. Times are in seconds of one clock."""

    hosts: tuple[str, ...]
    """Empty: its nodes are unknown, as of a SLURM job that is pending."""
    now: float
    ranks: int = 0
    """How many there are; 0: unknown."""
    step: StartStep | None = None
    """The step of the start; None: none has begun, or the ranks are running."""
    since: float = 0.0
    """When the step began."""
    running_since: float | None = None
    late: Collection[str] = ()
    """The nodes that have not finished the step."""
    unstarted: dict[str, None] = field(init=False)
    """The nodes that have not started a process, in the order of `hosts`."""
    joined: set[str] = field(default_factory=set)
    away: set[str] = field(default_factory=set)
    """Nodes that are unreachable."""
    ended: set[str] = field(default_factory=set)
    """Nodes that have ended their part, or were lost."""
    exited: bool = False
    """Whether a rank has exited: nodes that have not joined yet will not, or need not."""
    stopping_since: float | None = None
    """When the stop of all nodes began; None: they are not being stopped."""
    stopping_for: float | None = None
    """How many seconds the ranks have to end; None: unknown."""
    progress: RunProgress = field(default_factory=RunProgress)

    def __post_init__(self) -> None:
        self.set_hosts(self.hosts)

    def set_hosts(self, hosts: tuple[str, ...]) -> None:
        """Note which nodes there are; none has started a process yet."""
        self.hosts, self.unstarted = hosts, dict.fromkeys(hosts)

    def begin(self, step: StartStep, late: Collection[str]) -> None:
        """Note a step of the start, and the nodes that it waits for."""
        if step is not self.step:
            self.since = self.now
        self.step, self.late = step, late

    def begin_running(self, since: float) -> None:
        """Note that the ranks have been running since then."""
        self.running_since, self.step = since, None

    def begin_stop(self, seconds: float | None = None) -> None:
        """Note a stop, and how long the ranks have to end; a node's report of the same stop does
        not say it."""
        if self.stopping_since is None or seconds is not None:
            self.stopping_since, self.stopping_for = self.now, seconds

    def note(self, event: Event) -> None:
        """Note an event."""
        if event.kind == "restarting":
            self._restart()
        if event.kind == "exit":
            self.exited = True
        if event.kind == "stopping":
            self.begin_stop(event.seconds)
        if event.host is None:
            return
        reached: set[str] | None = {
            "joined": self.joined,
            "away": self.away,
            "lost": self.ended,
            "ended": self.ended,
        }.get(event.kind)
        if reached is not None:
            reached.add(event.host)
        if event.kind == "back":
            self.away.discard(event.host)
        if event.kind == "started":
            self._note_start(event.host)

    def note_line(self, line: Line) -> None:
        """Note the progress that a line may have; it is read when the text is made."""
        if self.running_since is None and self.step is None:
            self.running_since = self.now
        self.progress.note(line)

    def note_block(self, block: LineBlock) -> None:
        """Note the progress that one of several lines may have."""
        if self.running_since is None and self.step is None:
            self.running_since = self.now
        self.progress.note_block(block)

    def text(self, columns: int) -> str:
        """Return the line, without the last of its parts that do not fit in `columns`."""
        return joined(list(self._parts()), columns)

    def _note_start(self, host: str) -> None:
        self.unstarted.pop(host, None)
        if self.unstarted:
            self.begin(StartStep.STARTING, self.unstarted)
            return
        self.step = None
        if self.running_since is None:
            self.running_since = self.now

    def _restart(self) -> None:
        self.stopping_since = self.stopping_for = None
        self.step, self.late, self.exited = None, (), False
        self.unstarted = dict.fromkeys(self.hosts)
        for hosts in (self.joined, self.away, self.ended):
            hosts.clear()

    def _parts(self) -> Iterator[str]:
        if self.stopping_since is not None:
            yield from self._stop_parts(self.now - self.stopping_since)
        elif self.step is not None:
            yield from self._start_parts(self.step)
        elif self.running_since is not None:
            yield from self._running_parts(self.now - self.running_since)

    def _start_parts(self, step: StartStep) -> Iterator[str]:
        yield f"{_STEPS[step]} {elapsed_text(self.now - self.since)}"
        if self.hosts:
            count = len(self.hosts)
            yield f"{count - len(self.late)}/{counted(count, 'node')}"
        if self.late:
            yield f"waiting for {fold(self.late)}"

    def _stop_parts(self, seconds: float) -> Iterator[str]:
        yield f"stopping {elapsed_text(seconds)}"
        if self.stopping_for is not None:
            left = self.stopping_for - seconds
            yield f"killing in {elapsed_text(left)}" if left > 0 else "killing"
        late = [host for host in self.hosts if host not in self.ended]
        if late:
            yield f"waiting for {fold(late)}"

    def _running_parts(self, seconds: float) -> Iterator[str]:
        yield f"running {elapsed_text(seconds)}"
        if self.hosts:
            count = len(self.hosts)
            there = count - len(self.ended | self.away)
            yield f"{there}/{counted(count, 'node')}"
        if self.ranks:
            yield counted(self.ranks, "rank")
        if self.away - self.ended:
            yield f"reconnecting to {fold(self.away - self.ended)}"
        latest = self.progress.latest
        if latest is not None:
            yield from progress_parts(latest)
        elif self.joined and not self.exited:
            late = [host for host in self.hosts if host not in self.joined]
            if late:
                yield f"waiting for {fold(late)} to join"
