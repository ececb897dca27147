"""The identity of a job, and whether a record of SLURM belongs to it. Pure.

A number does not identify a job: SLURM restarts at FirstJobId after MaxJobId (slurm.conf(5)), and a
controller that lost its state reuses numbers. A name can be changed by `scontrol update`, and a
time as text depends on TZ and SLURM_TIME_FORMAT. Reliable are:

- The token, an argument of the script in `sbatch`: SLURM keeps it in the job's Command as long as
  it knows the job, through requeues, and in the accounting as SubmitLine.
- The submission time: that of a job without restarts is the time of its submission. A requeue
  increments the restarts and sets a new time (SLURM 22.05 to 25.11, slurmctld/job_mgr.c,
  `_job_requeue_op` and `batch_requeue_fini`); the accounting then has a record of each start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from dslaunch.slurm.states import JobInfo

SCRIPT = "/dev/stdin"
"""The name of the script in `sbatch`, whose argument identifies the job."""
_TOKEN = re.compile(r"/dev/stdin (dslaunch-[0-9a-f]{16})$")
_REQUEUES = frozenset(("REQUEUED", "NODE_FAIL", "PREEMPTED"))
"""The states of a start in the accounting after which SLURM requeues the job."""


class JobId(Struct, frozen=True):
    """The identity of one job, different from any other job with its number."""

    number: str
    """The decimal number that sbatch printed."""
    cluster: str = ""
    """The SLURM cluster, if it is not that of the commands (`sbatch --parsable`: `105;other`)."""
    submitted: int | None = None
    """The submission time that was seen last, in Unix seconds; None: not known yet."""
    restarts: int = 0
    """The number of restarts that was seen last."""
    token: str = ""
    """The argument that only this job has; empty: none."""
    user: int | None = None
    """The numeric user ID of its owner."""
    earlier: tuple[int, ...] = ()
    """The submission times of its earlier starts that were seen."""

    def __str__(self) -> str:
        return f"{self.number};{self.cluster}" if self.cluster else self.number

    @property
    def times(self) -> tuple[int, ...]:
        """All submission times that were seen of this job, the latest last."""
        return self.earlier if self.submitted is None else (*self.earlier, self.submitted)


class Whose(Enum):
    """Whether a record belongs to the job."""

    OURS = "ours"
    OTHERS = "others"
    UNPROVEN = "unproven"
    """It may be a requeue of this job, or another job."""


def whose(job: JobId, info: JobInfo) -> Whose:
    """Return whether one record belongs to a job."""
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
    # a job without restarts has its first submission time; one with restarts may be an older state
    # of this job, which a controller has restored
    return Whose.UNPROVEN if 0 < info.restarts <= job.restarts else Whose.OTHERS


def proven_by_starts(job: JobId, info: JobInfo, starts: Sequence[JobInfo]) -> bool:
    """Return whether the accounting proves that a record is a requeue of the job.

    That is so if the accounting has the start that was seen last, that start ended as before a
    requeue, and the number of starts since then equals that of restarts. A later job with the
    number has one start more than restarts.
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
    """Return the job with the values of its record, by which its next requeue is recognized.

    Restarts are updated only with their submission time: SLURM increments them at the requeue, and
    sets the time once the nodes are free.
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
