"""Which job is meant, for ever, and whether a record of SLURM is of that job. Pure.

A number alone names no job: SLURM counts from FirstJobId again after MaxJobId (slurm.conf(5)), and
a controller that lost its state gives numbers twice. A name can be changed by `scontrol update`,
and a time as text depends on TZ and SLURM_TIME_FORMAT. What is certain:

- The token, a word after the script's name in `sbatch`: SLURM keeps it as the job's Command for as
  long as it knows the job, through requeues, and in the accounting as SubmitLine.
- The submission time: of a job without restarts it is the one of its submission. A requeue raises
  the restarts and sets a new time (SLURM 22.05 to 25.11, slurmctld/job_mgr.c, `_job_requeue_op`
  and `batch_requeue_fini`); the accounting then has a record of each start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dslaunch.slurm.states import JobInfo

SCRIPT = "/dev/stdin"
"""The script's name in `sbatch`, whose arguments are to say which job it is."""
_TOKEN = re.compile(r"/dev/stdin (dslaunch-[0-9a-f]{16})$")
_REQUEUES = frozenset(("REQUEUED", "NODE_FAIL", "PREEMPTED"))
"""How the accounting records a start after which SLURM puts the job back into the queue."""


@dataclass(frozen=True, slots=True)
class JobId:
    """One job, and no other one that ever has its number."""

    number: str
    """Decimal, as sbatch printed it."""
    cluster: str = ""
    """Another SLURM cluster than that of the commands (`sbatch --parsable`: `105;other`)."""
    submitted: int | None = None
    """Unix seconds of the submission that was seen last; None: SLURM could not tell yet."""
    restarts: int = 0
    """Starts before the one that was seen last."""
    token: str = ""
    """The word that only this job has in its submission; empty: it has none."""
    user: int | None = None
    """Whose job it is, as a number."""
    earlier: tuple[int, ...] = ()
    """The submission times of its earlier starts, as far as they were seen."""

    def __str__(self) -> str:
        return f"{self.number};{self.cluster}" if self.cluster else self.number

    @property
    def times(self) -> tuple[int, ...]:
        """Every submission time at which this job was seen, the latest last."""
        return self.earlier if self.submitted is None else (*self.earlier, self.submitted)


class Whose(Enum):
    """Whether a record is of the job that is meant."""

    OURS = "ours"
    OTHERS = "others"
    UNPROVEN = "unproven"
    """It could be a requeue of this job, or another job."""


def whose(job: JobId, info: JobInfo) -> Whose:
    """Decide by one record alone."""
    if job.token and info.command is not None:
        carried = _TOKEN.search(info.command)
        if carried is not None:
            return Whose.OURS if carried[1] == job.token else Whose.OTHERS
        if SCRIPT not in info.command:
            return Whose.OTHERS
    if job.user is not None and info.user is not None and info.user != job.user:
        return Whose.OTHERS
    return _by_time(job, info)


def _by_time(job: JobId, info: JobInfo) -> Whose:
    if job.submitted is None or info.submitted is None:
        return Whose.UNPROVEN
    if info.submitted in job.times:
        return Whose.OURS
    was_requeued_since = info.restarts > job.restarts and info.submitted > job.submitted
    if was_requeued_since:
        return Whose.UNPROVEN
    # a job without restarts has its first time; one with restarts may be an old state of ours,
    # which a controller has read back
    return Whose.UNPROVEN if 0 < info.restarts <= job.restarts else Whose.OTHERS


def proven_by_starts(job: JobId, info: JobInfo, starts: Sequence[JobInfo]) -> bool:
    """Whether the accounting shows that a record is a requeue of the job.

    All of these: it has the start that was seen last; that one ended as one does before a requeue;
    and since then it has as many starts as SLURM counts restarts. A later job of the number has
    one start more than restarts.
    """
    if job.submitted is None or info.submitted is None:
        return False
    mine = [start for start in starts if start.job == info.job and _same_user(job, start)]
    seen = [start for start in mine if start.submitted == job.submitted]
    between = {
        start.submitted
        for start in mine
        if start.submitted is not None and job.submitted < start.submitted < info.submitted
    }
    went_back = bool(seen) and seen[-1].state in _REQUEUES
    return went_back and len(between) == info.restarts - job.restarts - 1


def _same_user(job: JobId, start: JobInfo) -> bool:
    return job.user is None or start.user is None or start.user == job.user


def seen(job: JobId, found: Iterable[JobInfo]) -> JobId:
    """The job with what its own record tells, so that its next requeue is recognized.

    The restarts count as seen with the time that belongs to them: SLURM raises them at the requeue,
    and sets the time only once the nodes are free.
    """
    own = next((info for info in found if info.job == job.number and not info.array), None)
    if own is None or own.submitted is None:
        return job
    user = job.user if own.user is None else own.user
    if own.submitted in job.times:
        return replace(job, user=user)
    return replace(
        job, submitted=own.submitted, restarts=own.restarts, user=user, earlier=job.times
    )
