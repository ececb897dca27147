"""The calls of SLURM's commands, against recorded answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from dslaunch.errors import DslaunchError, ToolMissingError
from dslaunch.slurm.client import (
    Client,
    Done,
    DownError,
    RefusedError,
    run_command,
    still_the_same,
    submit_environment,
)
from dslaunch.slurm.states import JobInfo

INVALID = Done(1, "", "slurm_load_jobs error: Invalid job id specified\n")
DISABLED = Done(1, "", "Slurm accounting storage is disabled\n")


class Answers:
    """Answers by the name of the program, and remembers what was called."""

    def __init__(self, **answers: Done | Exception) -> None:
        self.answers = answers
        self.calls: list[tuple[list[str], str]] = []

    def __call__(self, argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
        self.calls.append((list(argv), stdin))
        answer = self.answers[argv[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer


def client(**answers: Done | Exception) -> Client:
    return Client({}, Answers(**answers))


def test_the_number_of_a_submitted_job_is_given_also_with_its_cluster() -> None:
    assert client(sbatch=Done(0, "12;tiger\n", "")).submit("#!", {}) == "12"


def test_a_refused_job_says_why() -> None:
    said = "sbatch: error: Batch job submission failed: Invalid qos specification\n"
    with pytest.raises(RefusedError) as caught:
        client(sbatch=Done(1, "", said)).submit("#!", {})
    assert caught.value.refusal.settings == ("qos",)


def test_an_estimate_is_in_a_line() -> None:
    said = "sbatch: Job 21 to start at 2026-11-21T08:14:22 using 2 processors on nodes a in main\n"
    assert client(sbatch=Done(0, "", said)).test("#!", {}).startswith("would start at 2026-11-21")


def test_a_forgotten_job_is_looked_up_in_the_accounting() -> None:
    line = "12|COMPLETED|0:0|node1|train|2026-11-21T08:00:00\n"
    (info,) = client(scontrol=INVALID, sacct=Done(0, line, "")).jobs("12")
    assert info.state == "COMPLETED"


@pytest.mark.parametrize("sacct", [DISABLED, ToolMissingError("sacct is not here")])
def test_a_site_without_accounting_knows_nothing_of_a_forgotten_job(sacct: Done) -> None:
    assert client(scontrol=INVALID, sacct=sacct).jobs("12") == ()


def test_a_silent_controller_is_not_a_forgotten_job() -> None:
    down = Done(1, "", "slurm_load_jobs error: Unable to contact slurm controller\n")
    with pytest.raises(DownError):
        client(scontrol=down).jobs("12")


def test_a_job_of_another_cannot_be_cancelled() -> None:
    denied = Done(1, "", "scancel: error: Kill job error on job id 12: Access denied\n")
    with pytest.raises(DslaunchError, match="job 12 cannot be cancelled: Kill job error"):
        client(scancel=denied).cancel("12")


def test_a_missing_command_is_told() -> None:
    with pytest.raises(ToolMissingError, match="sbatch-of-nowhere is not here"):
        run_command(["sbatch-of-nowhere"], "", {})


def test_the_job_inherits_nothing_of_the_allocation_that_it_is_submitted_from() -> None:
    environ = {
        "SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "1", "SLURM_CONF": "/etc/c", "PATH": "/bin",
        "SRUN_CPUS_PER_TASK": "3", "SBATCH_PARTITION": "other", "SBATCH_WCKEY": "k",
    }  # fmt: skip
    script = "#!/bin/bash\n#SBATCH --partition=gpu\n"
    assert submit_environment(environ, script, {"TOKEN": "s"}) == {
        "SLURM_CONF": "/etc/c", "PATH": "/bin", "SBATCH_WCKEY": "k", "TOKEN": "s",
    }  # fmt: skip


def test_a_dependency_that_cannot_come_true_ends_the_job_unless_the_script_says_otherwise() -> None:
    script = "#!/bin/bash\n#SBATCH --dependency=afterok:7\n"
    for text, more in (
        (script, ["--kill-on-invalid-dep=yes"]),
        (f"{script}#SBATCH --kill-on-invalid-dep=no\n", []),
        ("#!/bin/bash\n", []),
    ):
        answers = Answers(sbatch=Done(0, "12\n", ""))
        Client({}, answers).submit(text, {})
        assert answers.calls == [(["sbatch", "--parsable", *more], text)]


def test_nodes_that_are_down_are_known() -> None:
    said = "NodeName=a1 Arch=x State=IDLE+DRAIN X=1\nNodeName=a2 Arch=x State=DOWN* Y=2\n"
    assert client(scontrol=Done(0, said, "")).down("a[1-2]") == ("a2",)


def test_a_later_job_of_the_same_number_is_another() -> None:
    info = JobInfo("12", "RUNNING", name="train", submitted="2026-11-21T08:00:00")
    assert still_the_same(info, "train", "2026-11-21T08:00:00")
    assert not still_the_same(info, "train", "2026-10-01T08:00:00")
    assert not still_the_same(info, "other", "2026-11-21T08:00:00")
