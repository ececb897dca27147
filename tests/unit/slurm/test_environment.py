"""The environment of sbatch: what is kept from it, and whether secrets reach the job."""

from __future__ import annotations

import pytest

from dslaunch.run.secret import Secret
from dslaunch.slurm.environment import submit_environment, variables_used, withheld_secrets

SCRIPT = "#!/bin/bash\n#SBATCH --partition=gpu\n#SBATCH --time=1\n#SBATCH --gres=gpu:2\n"
SCRIPT += "#SBATCH --no-requeue\n#SBATCH --mem=0\n#SBATCH --array=1-2\n"


def test_the_job_inherits_nothing_of_the_allocation_that_it_is_submitted_from() -> None:
    environ = {
        "SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "1", "SLURM_CONF": "/etc/c", "PATH": "/bin",
        "SRUN_CPUS_PER_TASK": "3", "SBATCH_WCKEY": "k",
    }  # fmt: skip
    assert submit_environment(environ, SCRIPT, {"TOKEN": Secret("s")}) == {
        "SLURM_CONF": "/etc/c", "PATH": "/bin", "SBATCH_WCKEY": "k", "TOKEN": "s",
    }  # fmt: skip


@pytest.mark.parametrize(
    "variable",
    [
        "SBATCH_PARTITION", "SBATCH_TIMELIMIT", "SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU",
        "SBATCH_ARRAY_INX", "SBATCH_REQUEUE", "SBATCH_GRES", "SBATCH_GPUS_PER_NODE", "SBATCH_GPUS",
        "SBATCH_WAIT",
    ],
)  # fmt: skip
def test_a_variable_does_not_win_over_the_script(variable: str) -> None:
    """sbatch would take SBATCH_TIMELIMIT rather than `#SBATCH --time`, and with SBATCH_WAIT it
    would return only when the job has ended."""
    assert submit_environment({variable: "x"}, SCRIPT, {}) == {}


def test_a_variable_counts_where_the_script_does_not_give_its_option() -> None:
    environ = {"SBATCH_ACCOUNT": "a", "SBATCH_REQ_SWITCH": "1", "HOME": "/home/me"}
    assert submit_environment(environ, SCRIPT, {}) == environ
    assert variables_used(environ) == {
        "account": "SBATCH_ACCOUNT",
        "switches": "SBATCH_REQ_SWITCH",
    }


@pytest.mark.parametrize(
    ("directive", "environ", "reaches"),
    [
        ("", {}, True),
        ("--export=ALL", {}, True),
        ("--export=all,X=1", {}, True),
        ("--export=X=1,TOKEN", {}, True),
        ("--export=NONE", {}, False),
        ("--export NONE", {}, False),
        ("--export=NIL", {}, False),
        ("--export=PATH", {}, False),
        ("--export-file=/f", {}, False),
        ("", {"SBATCH_EXPORT": "NONE"}, False),
        ("--export=ALL", {"SBATCH_EXPORT": "NONE"}, True),
    ],
)
def test_what_sbatch_exports_reaches_the_job(
    directive: str, environ: dict[str, str], reaches: bool
) -> None:
    script = f"{SCRIPT}#SBATCH {directive}\n" if directive else SCRIPT
    assert (withheld_secrets(["TOKEN"], script, environ) is None) is reaches
