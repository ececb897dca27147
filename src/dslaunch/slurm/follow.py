"""Follow a job: its output as it grows, its states as they change, through bad days to its end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dslaunch.errors import DslaunchError, ToolMissingError
from dslaunch.run.watch import Watch
from dslaunch.slurm.client import SlurmClient, gone
from dslaunch.slurm.identity import JobId, seen
from dslaunch.slurm.nodes import node_names
from dslaunch.slurm.output import FarTail, Layout
from dslaunch.slurm.output_evidence import Cut, OutputEvidence
from dslaunch.slurm.poll_interval import PollInterval
from dslaunch.slurm.query_failures import QueryFailure, UnknownNow
from dslaunch.slurm.states import GONE, JobInfo
from dslaunch.slurm.stream import Stream
from dslaunch.slurm.verdict import EndDetails, JobVerdict, decide, why_waiting
from dslaunch.slurm.verdict_text import CUT_WORDS, ended
from dslaunch.slurm.waiting import Estimates

LOOK = 0.5
"""Seconds between two looks at the output."""
TELL_AGAIN = 600.0
"""Seconds after which it is told once more that the state is still unknown."""
LAST_LINES = 10.0
"""Seconds after the end in which a shared file system may still bring the last lines."""
SOON_HERE = 5.0
"""Seconds in which the output of a job that runs must be here, where it is on shared storage."""
# ---------------------------------------------------------------- the job


@dataclass(slots=True)
class Following:
    """A job as it is seen from here."""

    client: SlurmClient
    job: JobId
    layout: Layout
    watch: Watch
    """Of the job; the tasks of an array have one each, with the same view and record."""
    tell: Callable[[str], None]
    """Told to a person at once: states, reasons, a controller that is silent."""
    output: str = ""
    """Where the output of a job is that SLURM may have forgotten."""
    jobs: dict[str, JobInfo] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    """By the path of the output."""
    told: dict[str, str] = field(default_factory=dict)
    estimates: Estimates = field(default_factory=Estimates)
    unknown: QueryFailure | None = None
    """Why the state cannot be told now; None: it can."""
    unknown_told: float = 0.0
    poll: PollInterval = field(default_factory=PollInterval)
    note: Callable[[JobId], None] = lambda job: None
    """Told when the job was seen with another submission time, so that it is recognized later."""

    def to_the_end(
        self, *, until: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> tuple[JobInfo, ...] | None:
        """Follow until it is over; None when `until` says that it is enough."""
        began = ask_at = clock()
        while not until():
            busy = self.read()
            if clock() >= ask_at:
                self.ask()
                now = clock()
                ask_at = now + self.poll.wait(now - began, random.random())
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
            found = self.client.jobs(self.job)
        except (UnknownNow, ToolMissingError) as error:
            self._tell_unknown(error)
            return
        if self.unknown is not None:
            self.tell("SLURM answers again")
        self.unknown, self.poll = None, PollInterval()
        job = seen(self.job, found)
        if job != self.job:
            self.job = job
            self.note(job)
        found = (*found, *self._forgotten(found))
        if not found:
            known = self.jobs.get(self.job.number)
            found = (known if known and known.over else gone(self.job.number),)
        for info in found:
            self.jobs[info.job] = info
            self._note(info)

    def _tell_unknown(self, error: UnknownNow | ToolMissingError) -> None:
        """Say it once, when the reason changes, and when it has lasted long."""
        code = error.code if isinstance(error, UnknownNow) else QueryFailure.NO_SLURM
        self.poll = self.poll.failed()
        now = time.monotonic()
        lasts_long = now - self.unknown_told >= TELL_AGAIN
        if code is not self.unknown or lasts_long:
            name = f"job {self.job.number}"
            self.tell(f"{error.message}; the state of {name} is unknown for now, asking again")
            self.unknown_told = now
        self.unknown = code

    def read(self) -> bool:
        """Take what is new in the output; False: nothing is."""
        busy = [stream.read() for stream in self.streams.values()]
        return any(busy)

    def verdicts(self, after: Mapping[str, EndDetails], own_uid: int) -> tuple[JobVerdict, ...]:
        """How each job, task or component ended; `after` by the job's number."""
        found = []
        for info in self.jobs.values():
            stream = self.stream_of(info)
            verdict = decide(
                info,
                observed=self.observed(info),
                root=stream.root if stream else None,
                after=after.get(info.job, EndDetails()),
                own_uid=own_uid,
            )
            found.append(verdict)
        return tuple(found)

    def replay(self, info: JobInfo, lines: Iterable[str]) -> None:
        """Take lines that the job kept of its output, where the output itself is not here."""
        stream = self.stream_of(info)
        if stream is not None and not stream.tail.seen and stream.far is None:
            stream.replay(lines)

    def observed(self, info: JobInfo) -> OutputEvidence:
        """What the output says of a job's last start."""
        stream = self.stream_of(info)
        return stream.observed if stream else OutputEvidence()

    def complete(self) -> None:
        """Add the tasks of an array that SLURM forgot before they were seen."""
        if any(info.array for info in self.jobs.values()):
            for info in self._accounted().values():
                self.jobs.setdefault(info.job, info)

    def _accounted(self) -> dict[str, JobInfo]:
        """The last start of each job that accounting knows; empty: it knows or tells none."""
        try:
            return {info.job: info for info in self.client.starts(self.job)}
        except DslaunchError:
            return {}

    def _forgotten(self, found: Sequence[JobInfo]) -> tuple[JobInfo, ...]:
        """The tasks of an array that were there and are not any more: SLURM forgets each one some
        minutes after its own end."""
        still = {info.job for info in found}
        missing = [i for i in self.jobs.values() if i.array and i.job not in still and not i.over]
        if not missing or not found:
            return ()
        known = self._accounted()
        return tuple(known.get(info.job, replace(info, state=GONE, flags=())) for info in missing)

    def stream_of(self, info: JobInfo) -> Stream | None:
        """The output of a job; None: it has none, or of a heterogeneous one the first has it."""
        return self.streams.get(self._output_of(info)) if info.component == 0 else None

    def _note(self, info: JobInfo) -> None:
        words = state_words(info)
        stream = self._attach(info)
        if stream is not None and info.waiting:
            self._note_requeue(info, stream)
        start = self.estimates.news(info, time.time()) if info.component == 0 else None
        if (self.told.get(info.job) != words or start) and info.component == 0:
            self.told[info.job] = words
            if info.array or not info.over:  # how a single job ended is said at the very end
                self.tell(f"{words}, {start}" if start else words)
        if stream is not None and info.nodes:
            stream.reader.hosts = self._hosts(info)
            self._reach(info, stream)

    def _note_requeue(self, info: JobInfo, stream: Stream) -> None:
        """Say why a start ended; the next one has nothing to do with what it has told."""
        stream.read()  # a start that was over before anybody asked may have left its last words
        if stream.observed == OutputEvidence() and stream.root is None:
            return
        cut = stream.observed.cut
        if cut not in (None, Cut.REQUEUED):
            self.tell(f"job {info.job} {CUT_WORDS[cut]}, and goes back into the queue")
        stream.begin_again()

    def _attach(self, info: JobInfo) -> Stream | None:
        """Begin to read the output of a job that has begun, now or once."""
        output = self._output_of(info)
        begun = not info.waiting or info.restarts > 0
        if output and begun and info.component == 0:
            if output not in self.streams:
                watch = self._watch_of(info)
                self.streams[output] = Stream.of(output, self.layout, watch, info.error)
            return self.streams[output]
        return None

    def _output_of(self, info: JobInfo) -> str:
        """The path of a job's output. The one of its submission is right as long as it is there:
        SLURM fills in the job's name of now, which may have been changed since it began."""
        if self.output and not info.array and Path(self.output).exists():
            return self.output
        return info.output or ("" if info.array else self.output)

    def _watch_of(self, info: JobInfo) -> Watch:
        if not info.array:
            return self.watch
        task = f"{info.array}_{info.task}"
        return Watch(self.watch.view, self.watch.record, self.watch.unseen, task=task)

    def _reach(self, info: JobInfo, stream: Stream) -> None:
        """Read the output through the job where it does not come to this machine."""
        if stream.since is None:
            stream.since = time.monotonic()
        late = time.monotonic() - stream.since > SOON_HERE
        lost = late and stream.far is None and not stream.tail.seen
        # srun would look for the number of another cluster's job in its own
        reached = info.batch_host and not info.cluster
        if lost and info.state == "RUNNING" and reached:
            output = str(stream.tail.path)
            self.tell(f"{output} is not on this machine; reading it on {info.batch_host}")
            stream.far = FarTail(info.job, info.batch_host, output, self.client.environ)

    def _hosts(self, info: JobInfo) -> tuple[str, ...]:
        """The nodes in the order of the step: those of all components."""
        parts = sorted(
            (other for other in self.jobs.values() if info.array or other.job >= info.job),
            key=lambda other: other.component,
        )
        mine = [info] if info.array else parts
        return tuple(host for part in mine for host in node_names(part.nodes))

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
        for stream in self.streams.values():
            stream.end()
        self.watch.flush_all()


def state_words(info: JobInfo) -> str:
    """Where a job stands, for a person."""
    name = f"job {info.array}_{info.task}" if info.array else f"job {info.job}"
    reason = state_reason(info)
    if info.waiting:
        return f"{name} waits: {reason}" if reason else f"{name} waits"
    if info.over:
        return f"{name} {reason}"
    again = f", start {info.restarts + 1}" if info.restarts and info.state == "RUNNING" else ""
    word = "COMPLETING" if "COMPLETING" in info.flags else info.state
    what = {"RUNNING": "runs", "COMPLETING": "is ending"}.get(word, f"is {word}")
    return f"{name} {what} on {info.nodes}{again}" if info.nodes else f"{name} {what}"


def state_reason(info: JobInfo) -> str:
    """Why a job waits, or how it ended as far as SLURM's state says it; empty: it runs."""
    if info.waiting:
        return why_waiting(info.reason)
    if not info.over:
        return ""
    return ended(decide(info, observed=OutputEvidence(), root=None, after=EndDetails(), own_uid=-1))
