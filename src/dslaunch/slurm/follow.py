"""Follow a job to its end: its growing output and its states, also while SLURM does not answer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from dslaunch.errors import DslaunchError, ToolMissingError
from dslaunch.run.view import ignore
from dslaunch.run.watch import Watch
from dslaunch.slurm.client import SlurmClient, gone
from dslaunch.slurm.identity import JobId, seen
from dslaunch.slurm.job_status import JobStatus, status_of
from dslaunch.slurm.nodes import node_names
from dslaunch.slurm.notices import JobNotice, NoticeCode
from dslaunch.slurm.output import Layout
from dslaunch.slurm.output_evidence import Cut, OutputEvidence
from dslaunch.slurm.output_sources import FarTail
from dslaunch.slurm.poll_interval import PollInterval
from dslaunch.slurm.query_failures import QueryError, QueryFailure
from dslaunch.slurm.states import GONE, JobInfo
from dslaunch.slurm.stream import Stream
from dslaunch.slurm.verdict import EndDetails, JobVerdict, decide
from dslaunch.slurm.waiting import Estimates

if TYPE_CHECKING:
    from dslaunch.run.log_selection import LogSelection

READ_INTERVAL = 0.5
"""Seconds between two reads of the output."""
REPEAT_INTERVAL = 600.0
"""Seconds after which a notice of an unknown state is repeated."""
LAST_LINES_TIMEOUT = 10.0
"""Seconds after the end in which a shared file system may still deliver the last lines."""
OUTPUT_TIMEOUT = 5.0
"""Seconds in which the output of a running job appears here if it is on shared storage."""


OnJob = Callable[[JobInfo, tuple[str, ...]], object]
"""Called with a job, and the names of its nodes in the order of the step."""


class Following(Struct):
    """A job that is followed."""

    client: SlurmClient
    job: JobId
    layout: Layout
    watch: Watch
    """Receives the output of the job; each task of an array has its own, with the same view and
    record."""
    tell: Callable[[JobNotice], object]
    """Receives notices to show at once."""
    on_job: OnJob = ignore
    """Receives what SLURM says of a job that is no array."""
    output: str = ""
    """The output of the job, which SLURM may have forgotten."""
    jobs: dict[str, JobInfo] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    """By the path of the output."""
    told: dict[str, JobStatus] = field(default_factory=dict)
    """How each job stood when it was shown last."""
    estimates: Estimates = field(default_factory=Estimates)
    unknown: QueryFailure | None = None
    """Why the state is unknown; None: it is known."""
    unknown_told: float = 0.0
    poll: PollInterval = field(default_factory=PollInterval)
    note: Callable[[JobId], object] = ignore
    """Receives the job with a new submission time, by which it is recognized later."""
    caught_up: Callable[[], object] = ignore
    """Called whenever all output that was there has been read."""

    def to_the_end(
        self, *, until: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> tuple[JobInfo, ...] | None:
        """Follow until it is over; None when `until` returns True."""
        began = ask_at = clock()
        while not until():
            began_to_read = bool(self.streams)
            busy = self.read()
            if clock() >= ask_at:
                self.ask()
                now = clock()
                ask_at = now + self.poll.wait(now - began, random.random())
            if self.over:
                return self._finished(clock)
            if not busy:
                if began_to_read:
                    self.caught_up()
                time.sleep(READ_INTERVAL)
        return None

    def begin_at_last(self, selection: LogSelection) -> None:
        """Query SLURM, and begin to read at the last lines that the selection has."""
        self.ask()
        for stream in self.streams.values():
            stream.skip_to_last(selection)

    def catch_up(self) -> tuple[JobInfo, ...]:
        """Read the output that exists, without following it."""
        if not self.jobs:
            self.ask()
        while self.read():
            pass
        self._end_streams()
        return tuple(self.jobs.values())

    @property
    def over(self) -> bool:
        """Whether all its jobs have ended."""
        return bool(self.jobs) and all(info.over for info in self.jobs.values())

    def ask(self) -> None:
        """Query SLURM for the state of the job; report changes."""
        try:
            found = self.client.jobs(self.job)
        except (QueryError, ToolMissingError) as error:
            self._tell_unknown(error)
            return
        if self.unknown is not None:
            self.tell(JobNotice(NoticeCode.SLURM_ANSWERS))
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

    def _tell_unknown(self, error: QueryError | ToolMissingError) -> None:
        """Report failed queries: the first, one with another reason, and every REPEAT_INTERVAL."""
        code = error.code if isinstance(error, QueryError) else QueryFailure.NO_SLURM
        self.poll = self.poll.failed()
        now = time.monotonic()
        lasts_long = now - self.unknown_told >= REPEAT_INTERVAL
        if code is not self.unknown or lasts_long:
            self.tell(
                JobNotice(
                    NoticeCode.STATE_UNKNOWN,
                    job=self.job.number,
                    failure=code,
                    error=error.message,
                )
            )
            self.unknown_told = now
        self.unknown = code

    def read(self) -> bool:
        """Read new output; return whether there was any."""
        busy = [stream.read() for stream in self.streams.values()]
        return any(busy)

    def verdicts(self, after: Mapping[str, EndDetails], own_uid: int) -> tuple[JobVerdict, ...]:
        """Return how each job, task or component ended; `after` is by the job's number."""
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
        """Take lines that the job saved of its output, if the output itself is not here."""
        stream = self.stream_of(info)
        if stream is not None and not stream.tail.seen and stream.far is None:
            stream.replay(lines)

    def observed(self, info: JobInfo) -> OutputEvidence:
        """Return what the output shows about the last start of a job."""
        stream = self.stream_of(info)
        return stream.observed if stream else OutputEvidence()

    def complete(self) -> None:
        """Add the tasks of an array that SLURM had forgotten before the first query."""
        if any(info.array for info in self.jobs.values()):
            for info in self._accounted().values():
                self.jobs.setdefault(info.job, info)

    def _accounted(self) -> dict[str, JobInfo]:
        """Return the last start of each job in the accounting; empty: none, or no answer."""
        try:
            return {info.job: info for info in self.client.starts(self.job)}
        except DslaunchError:
            return {}

    def _forgotten(self, found: Sequence[JobInfo]) -> tuple[JobInfo, ...]:
        """Return the tasks of an array that are no longer in SLURM's answer: SLURM forgets each
        task minutes after its end."""
        still = {info.job for info in found}
        missing = [i for i in self.jobs.values() if i.array and i.job not in still and not i.over]
        if not missing or not found:
            return ()
        known = self._accounted()
        return tuple(known.get(info.job, replace(info, state=GONE, flags=())) for info in missing)

    def stream_of(self, info: JobInfo) -> Stream | None:
        """Return the output of a job; None: it has none, as all but the first component."""
        return self.streams.get(self._output_of(info)) if info.component == 0 else None

    def _note(self, info: JobInfo) -> None:
        status = status_of(info)
        stream = self._attach(info)
        if stream is not None and info.waiting:
            self._note_requeue(info, stream)
        if info.component == 0:
            self._tell_status(info, status)
            if not info.array:
                self.on_job(info, self._hosts(info))
        if stream is not None and info.nodes:
            stream.reader.hosts = self._hosts(info)
            self._reach(info, stream)

    def _tell_status(self, info: JobInfo, status: JobStatus) -> None:
        """Report the state of a job if it has changed; the end of a single job is in its
        outcome."""
        start = self.estimates.update(info, time.time())
        if self.told.get(info.job) == status and start is None:
            return
        self.told[info.job] = status
        if info.array or not info.over:
            self.tell(JobNotice(NoticeCode.STATUS, job=info.job, status=status, start=start))

    def _note_requeue(self, info: JobInfo, stream: Stream) -> None:
        """Report why a start ended, and discard its output: the next start is independent of it."""
        stream.read()  # a start that ended before this query may have written its last lines
        if stream.observed == OutputEvidence() and stream.root is None:
            return
        cut = stream.observed.cut
        if cut not in (None, Cut.REQUEUED):
            self.tell(JobNotice(NoticeCode.REQUEUED, job=info.job, cut=cut))
        stream.begin_again()

    def _attach(self, info: JobInfo) -> Stream | None:
        """Read the output of a job that has started, now or before a requeue."""
        output = self._output_of(info)
        begun = not info.waiting or info.restarts > 0
        if output and begun and info.component == 0:
            if output not in self.streams:
                watch = self._watch_of(info)
                self.streams[output] = Stream.of(output, self.layout, watch, info.error)
            return self.streams[output]
        return None

    def _output_of(self, info: JobInfo) -> str:
        """Return the path of a job's output. That of its submission counts if it exists: SLURM
        inserts the current job name, which may have been changed since the start."""
        if self.output and not info.array and Path(self.output).exists():
            return self.output
        return info.output or ("" if info.array else self.output)

    def _watch_of(self, info: JobInfo) -> Watch:
        if not info.array:
            return self.watch
        watch = self.watch
        return Watch(watch.view, watch.record, watch.unseen, task=info.array_task)

    def _reach(self, info: JobInfo, stream: Stream) -> None:
        """Read the output by a step of the job if it does not appear on this machine."""
        if stream.since is None:
            stream.since = time.monotonic()
        late = time.monotonic() - stream.since > OUTPUT_TIMEOUT
        lost = late and stream.far is None and not stream.tail.seen
        # srun would use the number in its own cluster
        reached = info.batch_host and not info.cluster
        if lost and info.state == "RUNNING" and reached:
            output = str(stream.tail.path)
            host = info.batch_host
            self.tell(JobNotice(NoticeCode.READ_REMOTELY, job=info.job, path=output, host=host))
            stream.far = FarTail(info.job, info.batch_host, output, self.client.environ)

    def _hosts(self, info: JobInfo) -> tuple[str, ...]:
        """Return the nodes of all components in the order of the step."""
        parts = sorted(
            (other for other in self.jobs.values() if info.array or other.job >= info.job),
            key=lambda other: other.component,
        )
        mine = [info] if info.array else parts
        return tuple(host for part in mine for host in node_names(part.nodes))

    def _finished(self, clock: Callable[[], float]) -> tuple[JobInfo, ...]:
        """Read to the end of the output, which a shared file system may deliver late."""
        deadline = clock() + LAST_LINES_TIMEOUT
        quiet = clock()
        while clock() < deadline and clock() - quiet < 1.0:
            if self.read():
                quiet = clock()
            else:
                time.sleep(0.1)
        self._end_streams()
        return tuple(self.jobs.values())

    def _end_streams(self) -> None:
        for stream in self.streams.values():
            stream.end()
        self.watch.flush_all()
