"""Follow a job: its output as it grows, its states as they change, through bad days to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dslaunch.cluster.nodeset import expand
from dslaunch.errors import DslaunchError
from dslaunch.node.frames import NO_RANK, Output
from dslaunch.run.watch import Watch
from dslaunch.slurm.client import Client, DownError, gone
from dslaunch.slurm.output import FarTail, Layout, Reader, RootCauses, Source, Tail, task_ends
from dslaunch.slurm.states import JobInfo, how_ended, why_cut, why_waiting

LOOK = 0.5
"""Seconds between two looks at the output."""
ASK_SOON, ASK_LATER, SOON = 1.0, 10.0, 30.0
"""Seconds between two questions to the controller: in the first SOON seconds, and after."""
LAST_LINES = 10.0
"""Seconds after the end in which a shared file system may still bring the last lines."""
SOON_HERE = 5.0
"""Seconds in which the output of a job that runs must be here, where it is on shared storage."""
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
    far: dict[str, Source] = field(default_factory=dict)
    """Files that are not on this machine, read through the job."""
    since: dict[str, float] = field(default_factory=dict)
    causes: RootCauses = field(default_factory=RootCauses)
    told: dict[str, str] = field(default_factory=dict)
    cut: dict[str, str] = field(default_factory=dict)
    """Why SLURM ended a start of a job, by the job's number, until that is told."""
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
        for path, (tail, reader) in self.tails.items():
            data = self.far.get(path, tail).read()
            busy |= bool(data)
            self._take(reader.feed(data))
        return busy

    def _note(self, info: JobInfo) -> None:
        words = state_words(info)
        output = self._attach(info)
        if info.waiting and output in self.tails:
            self.read()  # a start that was over before anybody asked may have left its last words
        if info.waiting and info.job in self.cut:
            self.tell(f"job {info.job} {self.cut.pop(info.job)}, and goes back into the queue")
        if self.told.get(info.job) != words and info.component == 0:
            self.told[info.job] = words
            if info.array or not info.over:  # how a single job ended is said at the very end
                self.tell(words)
        if output in self.tails and info.nodes:
            self.tails[output][1].hosts = self._hosts(info)
            self._reach(info, output)

    def _attach(self, info: JobInfo) -> str:
        """Begin to read the output of a job that has begun, now or once; its path."""
        output = info.output or self.output
        begun = not info.waiting or info.restarts > 0
        if output and begun and info.component == 0 and "%" not in output:
            self.tails.setdefault(output, (Tail(Path(output)), Reader(self.layout)))
        return output

    def _reach(self, info: JobInfo, output: str) -> None:
        """Read the output through the job where it does not come to this machine."""
        began = self.since.setdefault(output, time.monotonic())
        late = time.monotonic() - began > SOON_HERE
        lost = late and output not in self.far and not self.tails[output][0].seen
        if lost and info.state == "RUNNING" and info.batch_host:
            self.tell(f"{output} is not on this machine; reading it on {info.batch_host}")
            environ = self.client.environ
            self.far[output] = FarTail(info.job, info.batch_host, output, environ)

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
        for source in self.far.values():
            source.close()
        self.watch.flush_all()

    def _take(self, pieces: Iterable[tuple[str, int | None, bytes]]) -> None:
        now = time.time()
        for host, rank, text in pieces:
            number = NO_RANK if rank is None else rank
            self.watch.output(host, Output(number, 1, now, text), 0.0)
            line = text.decode(errors="replace").rstrip()
            self.cut |= [cut] if (cut := why_cut(line)) else []
            found = task_ends(line, self.layout, now) if host == "slurm" else ()
            if rank is None and host != "slurm":
                found = self.causes.feed(host, line)
            for event in found:
                self.watch.happened(event)


def state_words(info: JobInfo) -> str:
    """Where a job stands, for a person."""
    task = f"_{info.task}" if info.array else ""
    name = f"job {info.array or info.job}{task}"
    if info.waiting:
        return f"{name} waits: {why_waiting(info.reason)}" if info.reason else f"{name} waits"
    if info.over:
        return f"{name} {how_ended(info)[0]}"
    again = f", start {info.restarts + 1}" if info.restarts and info.state == "RUNNING" else ""
    what = {"RUNNING": "runs", "COMPLETING": "is ending"}.get(info.state, f"is {info.state}")
    return f"{name} {what} on {info.nodes}{again}" if info.nodes else f"{name} {what}"
