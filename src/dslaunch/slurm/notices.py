"""What is noticed while a job is followed: codes with parameters, and their texts. Pure."""

from __future__ import annotations

import time
from enum import StrEnum

from msgspec import Struct

from dslaunch.slurm.job_status import JobStatus
from dslaunch.slurm.output_evidence import Cut
from dslaunch.slurm.query_failures import QueryFailure
from dslaunch.slurm.verdict_text import CUT_TEXTS, status_text
from dslaunch.slurm.waiting import start_text


class NoticeCode(StrEnum):
    """What is noticed."""

    STATUS = "status"
    """The status of the job, or its estimated start, has changed."""
    REQUEUED = "requeued"
    """SLURM ended a start of the job, and requeued it."""
    STATE_UNKNOWN = "state-unknown"
    """A query to SLURM failed."""
    SLURM_ANSWERS = "slurm-answers"
    """SLURM answers again."""
    READ_REMOTELY = "read-remotely"
    """The output is not on this machine, and is read on a node of the job."""
    NOT_STARTED = "not-started"
    """The job has no output yet."""
    OUTPUT_NOT_FOUND = "output-not-found"
    """The output is not on this machine."""


class JobNotice(Struct, frozen=True):
    """One notice about a job; parameters that a code does not have are not set."""

    code: NoticeCode
    job: str = ""
    status: JobStatus | None = None
    start: int | None = None
    """The estimated start, in Unix seconds."""
    cut: Cut | None = None
    """Why SLURM ended the start."""
    failure: QueryFailure | None = None
    error: str = ""
    """The message of the failure."""
    path: str = ""
    """The output."""
    host: str = ""
    """The node on which the output is."""


def notice_text(notice: JobNotice, now: float | None = None) -> str:
    """Return a notice as a line for users."""
    if notice.status is not None:
        text = status_text(notice.status)
        if notice.start is None:
            return text
        return f"{text}, {start_text(notice.start, time.time() if now is None else now)}"
    if notice.cut is not None:
        return f"job {notice.job} {CUT_TEXTS[notice.cut]} and is requeued"
    return _TEXTS[notice.code].format(
        job=notice.job,
        error=notice.error,
        path=notice.path,
        on_host=f" on {notice.host}" if notice.host else " on the node that wrote it",
    )


_TEXTS = {
    NoticeCode.STATE_UNKNOWN: "{error}; the state of job {job} is unknown, retrying",
    NoticeCode.SLURM_ANSWERS: "SLURM answers again",
    NoticeCode.READ_REMOTELY: "{path} is not on this machine; reading it{on_host}",
    NoticeCode.NOT_STARTED: "job {job} has not started",
    NoticeCode.OUTPUT_NOT_FOUND: "{path} is not on this machine; read it{on_host}",
}
