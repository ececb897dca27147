"""A run that is a SLURM job: SLURM and the job's output tell how it stands."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from dslaunch.errors import DslaunchError, UsageError
from dslaunch.run.handle import Attached, Gathered, Stopped, Tell
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.local import LocalRun, recorded_outcome
from dslaunch.run.run_record import RunRecord
from dslaunch.run.run_state import State, state_after
from dslaunch.run.status import Reports, RunStatus, Unknown
from dslaunch.run.watch import View, Watch
from dslaunch.slurm.client import SlurmClient
from dslaunch.slurm.job import (
    Submitted,
    end_gently,
    follow,
    following_of,
    note_end,
    note_stop,
    stand,
    submitted,
)
from dslaunch.slurm.query_failures import OF_THE_JOB, QueryFailure, UnknownNow
from dslaunch.slurm.states import GONE, JobInfo
from dslaunch.slurm.verdict import state_of

# ---------------------------------------------------------------- how a job is named

_JOB = re.compile(
    r"(?P<number>[0-9]{1,18})(?P<part>[_+][0-9]{1,9})?(?:;(?P<cluster>[^\s;]{1,255}))?"
)


@dataclass(frozen=True, slots=True)
class JobName:
    """A job as SLURM's commands name it: 12, a task of it, 12_3, a component, 12+1; 12;tiger is of
    another cluster."""

    number: str
    part: bool
    """Whether a task or a component is named."""
    cluster: str | None

    @classmethod
    def parse(cls, text: str) -> JobName | None:
        """Read it; None: it is none."""
        found = _JOB.fullmatch(text)
        return found and cls(found["number"], found["part"] is not None, found["cluster"])

    def find(self, runs: Iterable[LocalRun]) -> LocalRun | None:
        """Return the latest of the runs, the newest last, whose job it is; None: there is none.

        Raises UsageError for a number that jobs of several clusters have.
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
            raise UsageError(f"job {self.number} is of several clusters; name the run: {names}")
        return next(iter(found.values()), None)


# ---------------------------------------------------------------- the run


@dataclass(frozen=True, slots=True)
class SharedClient:
    """SLURM as several runs ask it: a cluster that does not answer is asked once."""

    client: SlurmClient
    failed: dict[str, DslaunchError] = field(default_factory=dict)
    """By the SLURM cluster."""


@dataclass(frozen=True, slots=True)
class SlurmRun:
    """A run that is a SLURM job."""

    local: LocalRun
    slurm: SharedClient
    part: str = ""
    """The task or component by which it was named; empty: it was named as a whole."""

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.local.run

    @property
    def hosts(self) -> tuple[str, ...]:
        """The nodes of the cluster file; SLURM may have given others."""
        return self.local.record.hosts

    @property
    def record(self) -> RunRecord:
        """This machine's record."""
        return self.local.record

    @property
    def job(self) -> Submitted:
        """The job, with what was seen of it since its submission."""
        assert self.record.slurm is not None
        return submitted(self.local.directory, self.record.slurm)

    def cluster_to_ask(self) -> None:
        """Nobody: its nodes know nothing of it."""

    def summary(self, reports: Reports) -> RunStatus:
        """Ask SLURM, unless the end was seen before, or its cluster has just not answered."""
        if self.local.result is not None:
            return self._status((), state_after(self.local.result))
        job = self.job
        error = self.slurm.failed.get(job.job.cluster)
        if error is not None:
            return self._unknown(error)
        try:
            jobs = stand(self.slurm.client, job)
        except DslaunchError as failure:
            if not (isinstance(failure, UnknownNow) and failure.code in OF_THE_JOB):
                self.slurm.failed[job.job.cluster] = failure
            return self._unknown(failure)
        return self._status(jobs, state_of(jobs))

    def status(self) -> RunStatus:
        """Ask SLURM, which is not needed for a run whose end was seen before."""
        try:
            jobs = stand(self.slurm.client, self.job)
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
        )

    def _unknown(self, error: DslaunchError) -> RunStatus:
        """The status of a job of which SLURM does not tell how it stands."""
        code = error.code if isinstance(error, UnknownNow) else QueryFailure.NO_SLURM
        return self._status((), State.UNKNOWN, Unknown(code.value, message=error.message))

    def logs(self, view: View, tell: Tell, *, follow: bool) -> None:
        """Show its output."""
        following = following_of(self.slurm.client, self.job, Watch(view), tell)
        if follow:
            with Interrupts() as interrupts:
                following.to_the_end(until=lambda: interrupts.count > 0)
            return
        jobs = following.catch_up()
        if not any(stream.tail.seen for stream in following.streams.values()):
            _tell_no_output(jobs, tell)

    def attach(self, view: View, tell: Tell) -> Attached:
        """Follow it to its end, which is written down."""
        if self.local.result is not None:
            return Attached(self.local.result, before=True)
        job = self.job
        with Interrupts() as interrupts:
            outcome = follow(
                self.slurm.client, job, Watch(view), tell, until=lambda: interrupts.count > 0
            )
        if outcome is not None:
            note_end(job.directory, outcome)
        return Attached(outcome, directory=job.directory)

    def stop(self, grace: float | None, caller: str) -> Stopped:
        """Cancel it; with `grace` the ranks get TERM and so many seconds before.

        Without, the site's KillWait says how long after TERM scancel kills. Raises UsageError for
        a part of a job, and a run that is over or that SLURM has forgotten, UnknownNow where its
        state cannot be told, DslaunchError where SLURM refuses.
        """
        if self.part:
            raise UsageError(
                f"{self.part} is a part of run {self.name}",
                hint=f"`scancel {self.part}` ends it alone, `dslaunch stop {self.name}` the whole "
                "run",
            )
        made, client = self.job, self.slurm.client
        try:
            jobs = stand(client, made)
            if all(info.state == GONE for info in jobs):
                raise UsageError(
                    f"SLURM does not know job {made.number} of run {self.name} any more"
                )
            if all(info.over for info in jobs):
                raise UsageError(f"run {self.name} is over: job {made.number} is not in the queue")
            if grace is not None:
                note_stop(made.directory, caller)
            if grace is None or not end_gently(client, made.job, grace):
                client.cancel(made.job)
        except UnknownNow as error:
            hint = f"try again; `scontrol show job {made.number}` shows whose job it is"
            words = f"run {self.name} was not stopped: {error.message}"
            raise UnknownNow(error.code, words, hint=hint) from None
        return Stopped(job=made.number)

    def stacks(self, timeout: float) -> Gathered:
        """Raise UsageError: no agent of the job can be reached from outside; says what to do."""
        made = self.job
        why = (
            "its agents are reached from inside the job alone"
            if made.layout.supervised
            else "no agent of dslaunch runs in it to read stacks"
        )
        raise UsageError(
            f"run {self.name} is SLURM job {made.number}: {why}",
            hint=f"read them by a step: srun --jobid={made.number} --overlap --pty bash, and there "
            "for the process of a rank: py-spy dump --pid PID",
        )


def _tell_no_output(jobs: tuple[JobInfo, ...], tell: Tell) -> None:
    """Say why there is nothing to show."""
    for info in jobs:
        where = f"on {info.batch_host}" if info.batch_host else "where it was written"
        if info.waiting:
            tell(f"job {info.job} has not begun")
        elif info.output:
            tell(f"{info.output} is not on this machine; look for it {where}")
