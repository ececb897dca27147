"""A submitted job: follow it, determine how it ended, cancel it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.run.handle import Notify
from dslaunch.run.local_runs import note_outcome
from dslaunch.run.outcome import Outcome
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.run_directory import write_private
from dslaunch.run.view import QuietView, ignore
from dslaunch.run.watch import Watch
from dslaunch.slurm.client import SlurmClient, gone
from dslaunch.slurm.end_details import end_details, waits_for_accounting
from dslaunch.slurm.follow import Following, OnJob
from dslaunch.slurm.identity import JobId, seen
from dslaunch.slurm.identity_file import seen_identity, write_identity
from dslaunch.slurm.job_files import (
    Written,
    completed,
    read_result,
    read_written,
    with_cause,
)
from dslaunch.slurm.notices import notice_text
from dslaunch.slurm.output import Layout
from dslaunch.slurm.states import JobInfo
from dslaunch.slurm.verdict import Ending, JobVerdict
from dslaunch.slurm.verdict_text import outcome_of

if TYPE_CHECKING:
    from dslaunch.run.run_record import JobRecord


class Submitted(Struct, frozen=True):
    """A job that SLURM has accepted."""

    job: JobId
    output: str
    """The path of its output by SLURM; empty: unknown."""
    layout: Layout
    directory: Path
    """The run directory."""

    @property
    def number(self) -> str:
        """The job's number."""
        return self.job.number


# ---------------------------------------------------------------- follow


def follow(
    client: SlurmClient,
    made: Submitted,
    watch: Watch,
    tell: Notify,
    *,
    until: Callable[[], bool],
    caught_up: Callable[[], object] = ignore,
    on_job: OnJob = ignore,
) -> Outcome | None:
    """Follow a job to its end; None when `until` returns True. `caught_up` is called whenever all
    output that was there has been read, `on_job` with what SLURM says of the job."""
    following = following_of(client, made, watch, tell)
    following.caught_up, following.on_job = caught_up, on_job
    ended = following.to_the_end(until=until)
    return None if ended is None else judged(following, made)


def judged(following: Following, made: Submitted) -> Outcome:
    """Return how a job ended; that of a supervised job with the result of the run in it."""
    outcome = outcome_of(verdicts(following, made))
    leaders = [info for info in following.jobs.values() if info.component == 0]
    if made.layout.supervised and len(leaders) == 1:
        info = leaders[0]
        output = info.output or made.output
        result = read_result(output, job=info.job, start=info.restarts + 1)
        outcome = replace(with_cause(outcome, result), jobs=outcome.jobs)
    return stopped(outcome, made.directory)


def verdicts(following: Following, made: Submitted) -> tuple[JobVerdict, ...]:
    """Return how a job ended, and why: one verdict per task."""
    following.complete()
    own_uid = os.geteuid()
    for number, info in list(following.jobs.items()):
        written = _written(info, made)
        following.jobs[number] = completed(info, written)
        if written is not None:
            following.replay(following.jobs[number], written.evidence)
    wait = waits_for_accounting()
    after = {
        number: end_details(
            following.client,
            following.job,
            info,
            observed=following.observed(info),
            layout=made.layout,
            wait=wait,
        )
        for number, info in following.jobs.items()
    }
    return following.verdicts(after, own_uid)


def _written(info: JobInfo, made: Submitted) -> Written | None:
    """Return what the job has written beside its output."""
    output = info.output or made.output
    if not output or "%" in output or info.component:
        return None
    return read_written(output, job=info.job, submitted=made.job.submitted)


# ---------------------------------------------------------------- status and end


def submitted(directory: Path, record: JobRecord) -> Submitted:
    """Return the job of a run directory, with its last seen identity."""
    job = JobId(
        number=record.job,
        cluster=record.cluster,
        submitted=record.submitted,
        token=record.token,
        user=record.user,
    )
    layout = Layout(
        groups=record.groups,
        direct=record.direct,
        elastic=record.elastic,
        supervised=record.supervised,
    )
    return Submitted(
        job=seen_identity(directory, job),
        output=record.output,
        layout=layout,
        directory=directory,
    )


def query_records(client: SlurmClient, made: Submitted) -> tuple[JobInfo, ...]:
    """Return SLURM's records of a submitted job. Raises QueryError.

    The end of the job is written to its run directory, since SLURM forgets jobs.
    """
    found = client.jobs(made.job)
    now = seen(made.job, found)
    if now != made.job:
        write_identity(made.directory, now)
    jobs = found or (gone(made.number),)
    if not all(info.over for info in jobs):
        return jobs
    following = following_of(client, made, Watch(QuietView()))
    following.catch_up()
    if following.over:
        outcome = judged(following, made)
        if any(job["code"] != Ending.GONE for job in outcome.jobs):
            note_outcome(made.directory, outcome, _last_end(following.jobs.values()))
    return tuple(following.jobs.values()) or jobs  # a query may have failed meanwhile


def _last_end(jobs: Iterable[JobInfo]) -> float | None:
    """Return when the last of the jobs ended by SLURM; None: unknown."""
    return max((float(info.ended) for info in jobs if info.ended), default=None)


STOPPED = "stopped"
"""The file of a run directory with the caller of `dslaunch stop`."""


def note_stop(directory: Path, caller: str) -> None:
    """Record that a user has stopped the job, since SLURM reports ranks that exit on TERM as
    failed."""
    _note_once(directory / STOPPED, caller + "\n")


def stopped(ended: Outcome, directory: Path) -> Outcome:
    """Return the outcome: interrupted if a user has stopped the job and it failed for that."""
    path = directory / STOPPED
    if ended.status != "failed" or not path.is_file():
        return ended
    by = path.read_text("utf-8", "replace")[:300].strip()
    reason = EndReason(EndCode.STOPPED, by=by)
    return Outcome("interrupted", 130, reason, jobs=ended.jobs, nodes_checked=False)


def end_gently(
    client: SlurmClient,
    job: JobId,
    grace: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Send TERM to the steps of a job, and wait; return whether it ended within `grace` seconds.

    A pending job has no steps, and is not waited for. Raises DslaunchError.
    """
    if all(info.waiting for info in client.jobs(job)):
        return False
    client.cancel(job, signal="TERM")
    deadline = clock() + grace
    while clock() < deadline:
        sleep(min(1.0, grace))
        if all(info.over for info in client.jobs(job)):
            return True
    return False


def _note_once(path: Path, text: str) -> None:
    """Write a file unless it exists; ignore errors such as a full disk."""
    with contextlib.suppress(OSError):
        if not path.exists():
            write_private(path, text)


def following_of(
    client: SlurmClient,
    made: Submitted,
    watch: Watch,
    tell: Notify = ignore,
) -> Following:
    """Return a `Following` of a submitted job; `tell` receives lines for users."""
    return Following(
        client=client,
        job=made.job,
        layout=made.layout,
        watch=watch,
        tell=lambda notice: tell(notice_text(notice)),
        output=made.output,
        note=lambda job: write_identity(made.directory, job),
    )
