"""Follow a job: its output as it grows, its states as they change, through bad days to its end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from dslaunch.cluster.nodeset import expand
from dslaunch.errors import DslaunchError
from dslaunch.node.frames import NO_RANK, Output
from dslaunch.run.events import Event
from dslaunch.run.watch import Watch
from dslaunch.slurm.client import Client, DownError, gone
from dslaunch.slurm.states import JobInfo, how_ended, why_waiting

LOOK = 0.5
"""Seconds between two looks at the output."""
ASK_SOON, ASK_LATER, SOON = 1.0, 10.0, 30.0
"""Seconds between two questions to the controller: in the first SOON seconds, and after."""
LAST_LINES = 10.0
"""Seconds after the end in which a shared file system may still bring the last lines."""
PIECE = 1 << 20
_LABEL = re.compile(rb" *(\d+): ?(.*)", re.S)
_TORCH = re.compile(rb"\[[a-z_A-Z0-9-]*?(\d+)\]:(.*)", re.S)
_TASKS = re.compile(
    r"srun: error: (?P<nodes>\S+): tasks? (?P<tasks>[\d,-]+): "
    r"(?:Exited with exit code (?P<code>\d+)|(?P<word>[A-Z][A-Za-z ]+?)(?: \(core dumped\))?)$"
)
_SIGNALS = {
    "Killed": 9, "Terminated": 15, "Segmentation fault": 11, "Aborted": 6, "Bus error": 7,
    "Floating point exception": 8, "Interrupt": 2, "Hangup": 1, "User defined signal 1": 10,
    "User defined signal 2": 12,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """How the tasks of the step, whose numbers srun puts before their lines, become ranks."""

    groups: tuple[tuple[int, int], ...]
    """Nodes and ranks of each, in rank order."""
    direct: bool
    """Every task is a rank; else it is the launcher of a node."""
    elastic: bool = False
    """Lines say their global rank, which does not follow from the node."""

    def place(self, task: int) -> tuple[int, int]:
        """The node of a task, counted from 0, and the first rank of that node, or its own."""
        node, first = 0, 0
        for nodes, slots in self.groups:
            per_node = slots if self.direct else 1
            if task < nodes * per_node:
                mine = node + task // per_node
                return mine, first + (task if self.direct else task * slots)
            task -= nodes * per_node
            node, first = node + nodes, first + nodes * slots
        return node, first


@dataclass(slots=True)
class Reader:
    """Turns the job's output into pieces with a host and a rank."""

    layout: Layout
    hosts: tuple[str, ...] = ()
    rest: bytes = b""

    def feed(self, data: bytes) -> Iterator[tuple[str, int | None, bytes]]:
        """Give each whole line of what has come: host, rank, text with its newline."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            yield self.read(line)

    def end(self) -> Iterator[tuple[str, int | None, bytes]]:
        """Give what is left without a newline."""
        if self.rest:
            yield self.read(self.rest)
        self.rest = b""

    def read(self, line: bytes) -> tuple[str, int | None, bytes]:
        """Tell whose line it is: srun labels a task's, torch's `--tee` a rank's."""
        labelled = _LABEL.fullmatch(line)
        if labelled is None:
            return "slurm", None, line + b"\n"
        task, text = int(labelled[1]), labelled[2]
        node, rank = self.layout.place(task)
        host = self.hosts[node] if node < len(self.hosts) else f"node {node}"
        if self.layout.direct:
            return host, rank, text + b"\n"
        local = _TORCH.fullmatch(text)
        if local is None:
            return host, None, text + b"\n"
        known = int(local[1]) + (0 if self.layout.elastic else rank)
        return host, known, local[2] + b"\n"


def task_ends(line: str, layout: Layout, now: float) -> Iterator[Event]:
    """What srun says of tasks that ended badly, as events."""
    match = _TASKS.match(line)
    if match is None:
        return
    code = int(match["code"]) if match["code"] else None
    number = None if code is not None else _SIGNALS.get(match["word"])
    if code is None and number is None:
        code = 1
    hosts = expand(match["nodes"])
    for task in _numbers(match["tasks"]):
        node, rank = layout.place(task)
        host = hosts[0] if len(hosts) == 1 else f"node {node}"
        yield Event(now, "exit", host, rank if layout.direct else None, code, number)


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


# ---------------------------------------------------------------- the output


@dataclass(slots=True)
class Tail:
    """A file that grows, may not be there yet, and may be written anew."""

    path: Path
    file: IO[bytes] | None = None

    def read(self) -> bytes:
        """What is new; nothing when nothing is."""
        try:
            if self.file is None:
                self.file = self.path.open("rb")
            elif self.file.tell() > self.path.stat().st_size:
                self.file.seek(0)
            return self.file.read(PIECE)
        except OSError:
            return b""

    @property
    def seen(self) -> bool:
        """Whether the file could be opened here."""
        return self.file is not None

    def close(self) -> None:
        """Let go of the file."""
        if self.file is not None:
            self.file.close()


# ---------------------------------------------------------------- the job


@dataclass(slots=True)
class Following:
    """A job as it is seen from here."""

    client: Client
    number: str
    layout: Layout
    watch: Watch
    tell: Callable[[str], None]
    """Told to a person at once: states, reasons, a controller that is silent."""
    same: Callable[[JobInfo], bool] = lambda info: True
    output: str = ""
    """Where the output of a job is that SLURM may have forgotten."""
    jobs: dict[str, JobInfo] = field(default_factory=dict)
    tails: dict[str, tuple[Tail, Reader]] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    down: str | None = None

    def to_the_end(
        self, *, until: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> tuple[JobInfo, ...] | None:
        """Follow until it is over; None when `until` says that it is enough."""
        began = asked = clock() - ASK_LATER
        began += ASK_LATER
        while not until():
            busy = self.read()
            wait = ASK_SOON if clock() - began < SOON else ASK_LATER
            if clock() - asked >= wait:
                asked = clock()
                self.ask()
            if self.over:
                return self._finished(clock)
            if not busy:
                time.sleep(LOOK)
        return None

    def catch_up(self) -> tuple[JobInfo, ...]:
        """Take what there is by now, and no more."""
        self.ask()
        while self.read():
            pass
        self._last_words()
        return tuple(self.jobs.values())

    @property
    def over(self) -> bool:
        """Whether everything of it has ended."""
        return bool(self.jobs) and all(info.over for info in self.jobs.values())

    def ask(self) -> None:
        """Ask SLURM how it stands; say what has changed."""
        try:
            found = [info for info in self.client.jobs(self.number) if self.same(info)]
        except (DownError, DslaunchError) as error:
            if self.down is None:
                self.tell(f"{error.message}; the job does not mind, asking again")
            self.down = error.message
            return
        if self.down is not None:
            self.tell("SLURM's controller answers again")
            self.down = None
        for info in found or [self.jobs.get(self.number, gone(self.number))]:
            known = info if found else (info if info.over else gone(self.number))
            self.jobs[known.job] = known
            self._note(known)

    def read(self) -> bool:
        """Take what is new in the output; False: nothing is."""
        busy = False
        for tail, reader in self.tails.values():
            data = tail.read()
            busy |= bool(data)
            self._take(reader.feed(data))
        return busy

    def _note(self, info: JobInfo) -> None:
        words = state_words(info)
        if self.told.get(info.job) != words and info.component == 0:
            self.told[info.job] = words
            if info.array or not info.over:  # how a single job ended is said at the very end
                self.tell(words)
        output = info.output or self.output
        if output and not info.waiting and info.component == 0 and "%" not in output:
            self.tails.setdefault(output, (Tail(Path(output)), Reader(self.layout)))
        if output in self.tails and info.nodes:
            self.tails[output][1].hosts = self._hosts(info)

    def _hosts(self, info: JobInfo) -> tuple[str, ...]:
        """The nodes in the order of the step: those of all components."""
        parts = sorted(
            (other for other in self.jobs.values() if info.array or other.job >= info.job),
            key=lambda other: other.component,
        )
        mine = [info] if info.array else parts
        return tuple(host for part in mine if part.nodes for host in expand(part.nodes))

    def _finished(self, clock: Callable[[], float]) -> tuple[JobInfo, ...]:
        """Read to the end of the output, which may come late over a shared file system."""
        deadline = clock() + LAST_LINES
        quiet = clock()
        while clock() < deadline and clock() - quiet < 1.0:
            if self.read():
                quiet = clock()
            else:
                time.sleep(0.1)
        self._last_words()
        return tuple(self.jobs.values())

    def _last_words(self) -> None:
        for tail, reader in self.tails.values():
            self._take(reader.end())
            tail.close()
        self.watch.flush_all()

    def _take(self, pieces: Iterable[tuple[str, int | None, bytes]]) -> None:
        now = time.time()
        for host, rank, text in pieces:
            number = NO_RANK if rank is None else rank
            self.watch.output(host, Output(number, 1, now, text), 0.0)
            if host == "slurm":
                for event in task_ends(text.decode(errors="replace").strip(), self.layout, now):
                    self.watch.happened(event)


def state_words(info: JobInfo) -> str:
    """Where a job stands, for a person."""
    task = f"_{info.task}" if info.array else ""
    name = f"job {info.array or info.job}{task}"
    if info.waiting:
        return f"{name} waits: {why_waiting(info.reason)}" if info.reason else f"{name} waits"
    if info.over:
        return f"{name} {how_ended(info)[0]}"
    again = f", start {info.restarts + 1}" if info.restarts else ""
    what = {"RUNNING": "runs", "COMPLETING": "is ending"}.get(info.state, f"is {info.state}")
    return f"{name} {what} on {info.nodes}{again}" if info.nodes else f"{name} {what}"
