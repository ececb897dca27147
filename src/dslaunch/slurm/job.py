"""One job from here: submitted, recorded like any other run, followed, judged, canceled."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.run.outcome import Outcome
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.run_directory import RESULT, write_private
from dslaunch.run.watch import Watch
from dslaunch.slurm.client import SlurmClient, gone
from dslaunch.slurm.end_details import end_details, waits_for_accounting
from dslaunch.slurm.follow import Following
from dslaunch.slurm.identity import JobId, seen
from dslaunch.slurm.identity_file import seen_identity, write_identity
from dslaunch.slurm.job_files import (
    Written,
    completed,
    read_result,
    read_written,
    with_cause,
)
from dslaunch.slurm.output import Layout
from dslaunch.slurm.states import JobInfo
from dslaunch.slurm.verdict import Ending, JobVerdict
from dslaunch.slurm.verdict_text import outcome_of

if TYPE_CHECKING:
    from dslaunch.run.run_record import JobRecord


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that SLURM has taken."""

    job: JobId
    output: str
    """Its file, as SLURM tells it; empty: it did not say."""
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
    tell: Callable[[str], None],
    *,
    until: Callable[[], bool],
) -> Outcome | None:
    """Follow a job to its end; None when `until` says that it is enough."""
    following = following_of(client, made, watch, tell)
    ended = following.to_the_end(until=until)
    return None if ended is None else judged(following, made)


def judged(following: Following, made: Submitted) -> Outcome:
    """Return how a job that is over ended; of a supervised one with what the run in it found."""
    outcome = outcome_of(verdicts(following, made))
    leaders = [info for info in following.jobs.values() if info.component == 0]
    if made.layout.supervised and len(leaders) == 1:
        info = leaders[0]
        output = info.output or made.output
        result = read_result(output, job=info.job, start=info.restarts + 1)
        outcome = replace(with_cause(outcome, result), jobs=outcome.jobs)
    return stopped(outcome, made.directory)


def verdicts(following: Following, made: Submitted) -> tuple[JobVerdict, ...]:
    """Return how a job that is over ended, and what explains it: one verdict per task."""
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
    """What the job has written itself, beside its output, whose name SLURM may never have told."""
    output = info.output or made.output
    if not output or "%" in output or info.component:
        return None
    return read_written(output, job=info.job, submitted=made.job.submitted)


# ---------------------------------------------------------------- the same, later


def submitted(directory: Path, record: JobRecord) -> Submitted:
    """Return the job of a run directory, with what was seen of it since its submission."""
    job = JobId(
        number=record.job,
        cluster=record.cluster,
        submitted=record.submitted,
        token=record.token,
        user=record.user,
    )
    layout = Layout(record.groups, record.direct, record.elastic, record.supervised)
    return Submitted(seen_identity(directory, job), record.output, layout, directory)


def stand(client: SlurmClient, made: Submitted) -> tuple[JobInfo, ...]:
    """How a recorded job stands. Raises UnknownNow.

    The end is written down once it is seen, since SLURM forgets it.
    """
    found = client.jobs(made.job)
    now = seen(made.job, found)
    if now != made.job:
        write_identity(made.directory, now)
    jobs = found or (gone(made.number),)
    if not all(info.over for info in jobs):
        return jobs
    following = following_of(client, made, Watch(Nowhere()))
    following.catch_up()
    if following.over:
        outcome = judged(following, made)
        if any(job["code"] != Ending.GONE for job in outcome.jobs):
            note_end(made.directory, outcome)
    return tuple(following.jobs.values()) or jobs  # SLURM may have failed meanwhile


STOPPED = "stopped"
"""The file of a run directory that says that `dslaunch stop` ended the job, and who called it."""


def note_stop(directory: Path, caller: str) -> None:
    """Write down that a user has stopped the job: SLURM takes ranks that end on TERM for failed."""
    _note_once(directory / STOPPED, caller + "\n")


def stopped(ended: Outcome, directory: Path) -> Outcome:
    """Return the outcome, interrupted where a user has stopped the job and it failed by that."""
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
    """Send TERM to the steps of a job, and wait; whether it was over within `grace` seconds.

    A job that has not begun has no steps, and is not waited for. Raises DslaunchError.
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


def note_end(directory: Path, outcome: Outcome) -> None:
    """Write a run's result, unless it is there."""
    _note_once(directory / RESULT, json.dumps(outcome.as_dict(), indent=2) + "\n")


def _note_once(path: Path, text: str) -> None:
    """Write a file, unless it is there; a full disk costs the note, and nothing else."""
    with contextlib.suppress(OSError):
        if not path.exists():
            write_private(path, text)


class Nowhere:
    """A view that shows nothing."""

    def line(self, line: object) -> None:
        """Nothing."""

    def event(self, event: object) -> None:
        """Nothing."""


def following_of(
    client: SlurmClient,
    made: Submitted,
    watch: Watch,
    tell: Callable[[str], None] = lambda words: None,
) -> Following:
    """What follows a submitted job."""
    return Following(
        client=client,
        job=made.job,
        layout=made.layout,
        watch=watch,
        tell=tell,
        output=made.output,
        note=lambda job: write_identity(made.directory, job),
    )
