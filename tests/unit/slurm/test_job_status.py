"""The status of a job, by SLURM's state alone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dslaunch.slurm.job_status import JobPhase, JobStatus, pending_reason, status_of
from dslaunch.slurm.states import JobInfo
from dslaunch.slurm.verdict import Ending
from dslaunch.slurm.verdict_text import pending_text

JOB = JobInfo("12", "RUNNING", nodes="a")


@pytest.mark.parametrize(
    ("job", "phase"),
    [
        (JobInfo("12", "PENDING", "Resources"), JobPhase.PENDING),
        (JOB, JobPhase.RUNNING),
        (replace(JOB, flags=("COMPLETING",)), JobPhase.COMPLETING),
        (JobInfo("12", "SUSPENDED"), JobPhase.OTHER),
        (JobInfo("12", "TIMEOUT"), JobPhase.ENDED),
    ],
)
def test_a_state_is_a_phase(job: JobInfo, phase: JobPhase) -> None:
    assert status_of(job).phase is phase


def test_a_start_after_a_requeue_is_counted() -> None:
    assert status_of(replace(JOB, restarts=1)) == JobStatus(
        JobPhase.RUNNING, name="12", state="RUNNING", nodes="a", start=2
    )


def test_an_ended_job_has_a_verdict() -> None:
    verdict = status_of(JobInfo("12", "TIMEOUT")).verdict
    assert verdict is not None
    assert verdict.code is Ending.TIME_LIMIT


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("Resources", "Resources"),
        ("ReqNodeNotAvail, UnavailableNodes:node3", "ReqNodeNotAvail"),
        ("launch_failed_requeued_held", "launch failed requeued held"),
        ("Whatever", "Whatever"),
    ],
)
def test_a_reason_of_slurm_is_a_code(reason: str, code: str) -> None:
    """Recorded: scontrol has underscores in the reason of a job held after a failed prolog."""
    assert pending_reason(reason) == code


def test_a_pending_text_has_slurms_reason() -> None:
    for reason in ("ReqNodeNotAvail, UnavailableNodes:node3", "QOSMaxGRESPerUser"):
        assert pending_text(reason).endswith(f"({reason})")
    assert pending_text("Whatever") == "Whatever"
