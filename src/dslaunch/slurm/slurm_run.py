"""A run that is a SLURM job: its state comes from SLURM and from the job's output."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from dslaunch.errors import DslaunchError, ErrorCode, UsageError
from dslaunch.run.handle import (
    Attached,
    Notify,
    RankStacks,
    RunHandle,
    Sources,
    Stopped,
    this_user,
)
from dslaunch.run.interrupts import Until, never
from dslaunch.run.local_runs import LocalRun, note_outcome, recorded_outcome
from dslaunch.run.log_selection import EVERY_LINE, LogSelection, SelectedLines
from dslaunch.run.progress import Progress
from dslaunch.run.rank_signals import Signaled, order
from dslaunch.run.rank_stacks import JobNumbers, gather_stacks
from dslaunch.run.reach import ReachedNodes
from dslaunch.run.run_record import RunRecord
from dslaunch.run.run_state import ENDED, State, state_after
from dslaunch.run.status import Reports, RunStatus, Unknown
from dslaunch.run.usage_monitor import UsageSource
from dslaunch.run.view import View
from dslaunch.run.watch import Watch
from dslaunch.slurm.client import SlurmClient
from dslaunch.slurm.job import (
    Submitted,
    end_gently,
    follow,
    following_of,
    note_stop,
    query_records,
    submitted,
)
from dslaunch.slurm.job_signals import signal_jobs
from dslaunch.slurm.job_steps import reach_jobs
from dslaunch.slurm.last_progress import last_progress
from dslaunch.slurm.nodes import node_names
from dslaunch.slurm.notices import JobNotice, NoticeCode, notice_text
from dslaunch.slurm.query_failures import OF_THE_JOB, QueryError, QueryFailure
from dslaunch.slurm.states import GONE, JobInfo
from dslaunch.slurm.verdict import state_of

# ---------------------------------------------------------------- how a job is named

_JOB = re.compile(
    r"(?P<number>[0-9]{1,18})(?P<part>[_+][0-9]{1,9})?(?:;(?P<cluster>[^\s;]{1,255}))?"
)


class JobName(Struct, frozen=True):
    """A job in the notation of SLURM's commands: 12, its task 12_3, its component 12+1; 12;tiger is
    a job of another cluster."""

    number: str
    part: bool
    """Whether a task or a component is named."""
    cluster: str | None

    @classmethod
    def parse(cls, text: str) -> JobName | None:
        """Parse a job; None: it is not one."""
        found = _JOB.fullmatch(text)
        return found and cls(found["number"], found["part"] is not None, found["cluster"])

    def find(self, runs: Iterable[LocalRun]) -> LocalRun | None:
        """Return the run of this job, the latest of several; None: there is none.

        Raises UsageError for a number of jobs in several clusters.
        """
        found: dict[str, LocalRun] = {}
        for run in runs:
            job = run.record.slurm
            if job is not None and job.job == self.number:
                found[job.cluster] = run
        if self.cluster is not None:
            return found.get(self.cluster)
        if len(found) > 1:
            names = ", ".join(run.run for run in found.values())
            raise UsageError(f"job {self.number} exists in several clusters; name the run: {names}")
        return next(iter(found.values()), None)


# ---------------------------------------------------------------- the run


def part_name(info: JobInfo) -> str:
    """Return how SLURM's commands name a job, a task or a component."""
    component = f"{info.leader}+{info.component}" if info.leader else ""
    return info.array_task or component or info.job


class SharedClient(Struct, frozen=True):
    """A client of several runs: a cluster that does not answer is queried only once."""

    client: SlurmClient
    failed: dict[str, DslaunchError] = field(default_factory=dict)
    """By the SLURM cluster."""


@dataclass(frozen=True, slots=True)
class SlurmRun(RunHandle):
    """A run that is a SLURM job."""

    local: LocalRun
    slurm: SharedClient
    part: str = ""
    """The task or component that the user named; empty: the whole job."""

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.local.run

    @property
    def hosts(self) -> tuple[str, ...]:
        """The nodes of the cluster file; SLURM may have allocated others."""
        return self.local.record.hosts

    @property
    def record(self) -> RunRecord:
        """This machine's record."""
        return self.local.record

    @property
    def job(self) -> Submitted:
        """The job, with what is known about it since its submission."""
        assert self.record.slurm is not None
        return submitted(self.local.directory, self.record.slurm)

    def cluster_to_ask(self) -> None:
        """Return None: SLURM knows its state, not its nodes."""

    def summary(self, reports: Reports) -> RunStatus:
        """Return its status: query SLURM unless its end is recorded or its cluster did not
        answer."""
        if self.local.result is not None:
            return self._status((), state_after(self.local.result))
        job = self.job
        error = self.slurm.failed.get(job.job.cluster)
        if error is not None:
            return self._unknown(error)
        try:
            jobs = query_records(self.slurm.client, job)
        except DslaunchError as failure:
            if not (isinstance(failure, QueryError) and failure.code in OF_THE_JOB):
                self.slurm.failed[job.job.cluster] = failure
            return self._unknown(failure)
        return self._status(jobs, state_of(jobs))

    def status(self) -> RunStatus:
        """Return its status by SLURM, or by the record if the run has ended."""
        try:
            jobs = query_records(self.slurm.client, self.job)
        except DslaunchError as error:
            if self.local.result is None:
                return self._unknown(error)
            return self._status((), state_after(self.local.result))
        result = recorded_outcome(self.local.directory)
        known = tuple(info for info in jobs if info.state != GONE)
        if result is not None:
            return self._status(known, state_after(result))
        return self._status(known or jobs, state_of(jobs))

    def _status(
        self, jobs: tuple[JobInfo, ...], state: State, unknown: Unknown | None = None
    ) -> RunStatus:
        output = {info.output or self.job.output for info in jobs if info.component == 0}
        return RunStatus(
            run=self.name,
            state=state,
            record=self.record,
            jobs=jobs,
            result=recorded_outcome(self.local.directory),
            unknown=unknown,
            output=tuple(sorted(filter(None, output or {self.job.output}))),
            directory=str(self.local.directory),
            ended=self._ended(jobs, state),
        )

    def _ended(self, jobs: tuple[JobInfo, ...], state: State) -> float | None:
        """Return when the job ended by SLURM, else when its end was recorded."""
        if state not in ENDED:
            return None
        ends = [info.ended for info in jobs if info.over and info.ended]
        return float(max(ends)) if ends else self.local.ended

    def progress(self) -> Progress | None:
        """Return the progress by the end of its output, if this machine sees that."""
        if not self.job.output:
            return None
        return last_progress(
            Path(self.job.output), self.job.layout, self.local.record.progress_patterns
        )

    def _unknown(self, error: DslaunchError) -> RunStatus:
        """Return the status of a job whose state is unknown."""
        code = error.code if isinstance(error, QueryError) else QueryFailure.NO_SLURM
        return self._status((), State.UNKNOWN, Unknown(code.value, message=error.message))

    def sources(self) -> Sources:
        """Return its nodes by SLURM, and its ranks."""
        try:
            jobs = self.slurm.client.jobs(self.job.job)
        except DslaunchError:
            jobs = ()
        hosts = frozenset(host for info in jobs for host in node_names(info.nodes))
        return Sources(hosts or None, self.record.world_size, times=False)

    def show_logs(
        self,
        view: View,
        tell: Notify,
        selection: LogSelection = EVERY_LINE,
        *,
        follow: bool,
        until: Until = never,
    ) -> None:
        """Show its output. With `tail`, that many lines of each output file."""
        chosen = SelectedLines(view, replace(selection, tail=None))
        following = following_of(self.slurm.client, self.job, Watch(chosen), tell)
        if selection.tail is not None:
            following.begin_at_last(selection)
        if follow:
            following.to_the_end(until=until)
            return
        jobs = following.catch_up()
        if not any(stream.tail.seen for stream in following.streams.values()):
            _tell_no_output(jobs, tell)

    def attach(
        self,
        view: View,
        tell: Notify,
        selection: LogSelection = EVERY_LINE,
        *,
        until: Until = never,
    ) -> Attached:
        """Follow it to its end, and record the end."""
        if self.local.result is not None:
            return Attached(self.local.result, before=True)
        job = self.job
        chosen = SelectedLines(view, selection)
        outcome = follow(
            self.slurm.client,
            job,
            Watch(chosen),
            tell,
            until=until,
            caught_up=chosen.release,
        )
        chosen.release()
        if outcome is not None:
            note_outcome(job.directory, outcome)
        return Attached(outcome, directory=job.directory)

    def stop(self, grace: float | None = None, caller: str | None = None) -> Stopped:
        """Cancel it; with `grace` send TERM to the ranks that many seconds before.

        Otherwise SLURM sends KILL after the site's KillWait. Raises UsageError for a part of a
        job, and for a run that is over or that SLURM has forgotten; DslaunchError if its state is
        unknown, and if SLURM refuses.
        """
        if self.part:
            raise UsageError(
                f"{self.part} is only a part of run {self.name}",
                hint=f"`scancel {self.part}` cancels this part, `dslaunch stop {self.name}` the "
                "whole run",
            )
        made, client = self.job, self.slurm.client
        try:
            jobs = query_records(client, made)
            if all(info.state == GONE for info in jobs):
                raise UsageError(f"SLURM no longer knows job {made.number} of run {self.name}")
            if all(info.over for info in jobs):
                raise UsageError(
                    f"run {self.name} has ended: job {made.number} is not in the queue"
                )
            if grace is not None:
                note_stop(made.directory, caller or this_user())
            if grace is None or not end_gently(client, made.job, grace):
                client.cancel(made.job)
        except QueryError as error:
            hint = f"try again; `scontrol show job {made.number}` shows whose job it is"
            raise DslaunchError(
                f"run {self.name} was not stopped: {error.message}", hint=hint
            ) from None
        return Stopped(job=made.number)

    def signal(
        self, name: str, *, ranks: Collection[int] | None = None, force: bool = False
    ) -> Signaled:
        """Send a signal to the ranks by a step on each node of the job; SLURM itself would send it
        to their launchers too. Raises UsageError, DslaunchError as `RunHandle`."""
        what = order(name, ranks, force=force)
        if self.part:
            raise UsageError(
                f"{self.part} is only a part of run {self.name}",
                hint=f"signal all ranks: dslaunch signal {self.name} {what.name}",
            )
        made, client = self.job, self.slurm.client
        running = [info for info in query_records(client, made) if info.state == "RUNNING"]
        if not running:
            raise DslaunchError(f"SIG{what.name} was not sent: job {made.number} is not running")
        return signal_jobs(running, what, client.environ)

    def stacks(self, timeout: float = 15.0) -> RankStacks:
        """Ask a step on each of its nodes, which finds the ranks there. Raises UsageError for a job
        array as a whole, DslaunchError as `RunHandle`."""
        with self._reached_ranks() as (nodes, numbers):
            stacks = gather_stacks(list(nodes.sessions.values()), timeout, numbers)
            return RankStacks(
                stacks=stacks,
                unresponsive=tuple(host for host in nodes.sessions if host not in stacks),
                failures=tuple(nodes.failures.values()),
            )

    @contextlib.contextmanager
    def usage_source(self, hosts: Collection[str] = ()) -> Iterator[UsageSource]:
        """Start a step on each of its nodes, which finds the ranks there. Raises UsageError for a
        job array as a whole, DslaunchError as `RunHandle`."""
        with self._reached_ranks(hosts) as (nodes, numbers):
            yield UsageSource(nodes, self.record.progress_patterns, numbers, self.progress)

    @contextlib.contextmanager
    def _reached_ranks(
        self, hosts: Collection[str] = ()
    ) -> Iterator[tuple[ReachedNodes, JobNumbers]]:
        """Start a step on each of its nodes, or on these. Raises as `usage_source`."""
        running = self._running_tasks()
        with reach_jobs(running, self.slurm.client.environ, hosts) as reached:
            nodes = ReachedNodes()
            numbers: dict[str, Sequence[str]] = {}
            for job in reached:
                nodes.failures |= job.nodes.failures
                for session in job.sessions:
                    session.expect(range(self.record.world_size))
                    nodes.sessions[session.host] = session
                    numbers[session.host] = job.numbers
            yield nodes, numbers

    def _running_tasks(self) -> list[JobInfo]:
        """Return the job, its components, or the task that the user named, which is running.

        Raises DslaunchError if there is none, UsageError for several tasks of an array.
        """
        made = self.job
        running = [
            info for info in query_records(self.slurm.client, made) if info.state == "RUNNING"
        ]
        if self.part:
            running = [info for info in running if part_name(info) == self.part.partition(";")[0]]
        if not running:
            raise DslaunchError.coded(
                ErrorCode.JOB_NOT_RUNNING, run=self.name, job=self.part or made.number
            )
        tasks = [part_name(info) for info in running if info.array]
        if len(tasks) > 1:
            raise UsageError.coded(
                ErrorCode.SEVERAL_TASKS, run=self.name, count=len(tasks), task=tasks[0]
            )
        return running


def _tell_no_output(jobs: tuple[JobInfo, ...], tell: Notify) -> None:
    """Notify why there is no output to show."""
    for info in jobs:
        if info.waiting:
            tell(notice_text(JobNotice(NoticeCode.NOT_STARTED, job=info.job)))
        elif info.output:
            missing = JobNotice(
                NoticeCode.OUTPUT_NOT_FOUND,
                job=info.job,
                path=info.output,
                host=info.batch_host,
            )
            tell(notice_text(missing))
