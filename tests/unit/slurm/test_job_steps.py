"""Steps beside those of a running job, by a `srun` that starts none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dslaunch.errors import DslaunchError, ErrorCode
from dslaunch.slurm.job_steps import reach_jobs
from dslaunch.slurm.states import JobInfo

REFUSES = """\
#!/bin/sh
echo "srun: error: Unable to create step for job 7: Access/permission denied" >&2
exit 1
"""
JOB = JobInfo("7", "RUNNING", nodes="n[1-2]")


@pytest.fixture
def refusing(tmp_path: Path) -> dict[str, str]:
    """An environment with a `srun` that refuses every step."""
    srun = tmp_path / "srun"
    srun.write_text(REFUSES)
    srun.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def refusal(environ: dict[str, str], info: JobInfo) -> DslaunchError:
    with pytest.raises(DslaunchError) as refused, reach_jobs([info], environ):
        pass
    return refused.value


def test_a_site_that_forbids_steps_is_named_with_the_reason_of_slurm(
    refusing: dict[str, str],
) -> None:
    error = refusal(refusing, JOB)
    assert error.error_code is ErrorCode.STEPS_REFUSED
    assert error.values["job"] == "7"
    assert "Access/permission denied" in str(error.values["why"])
    assert error.hint is not None


def test_a_machine_without_srun_reaches_no_job(tmp_path: Path) -> None:
    error = refusal({"PATH": str(tmp_path)}, JOB)
    assert (error.error_code, error.values["why"]) == (ErrorCode.STEPS_REFUSED, "srun not found")


def test_a_job_without_nodes_is_not_reached(refusing: dict[str, str]) -> None:
    error = refusal(refusing, JobInfo("7", "RUNNING"))
    assert error.error_code is ErrorCode.STEPS_REFUSED
