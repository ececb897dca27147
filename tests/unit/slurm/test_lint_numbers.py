"""Numbers of batch scripts that no computer has as many nodes for."""

from __future__ import annotations

import itertools

import pytest

from dslaunch.slurm.lint import lint_script

HUGE = "9" * 5000
"""More digits than Python converts to a number."""
OPTIONS = (
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "gpus",
    "gpus-per-node",
    "gpus-per-task",
    "gres",
    "cpus-per-task",
    "mem",
    "time",
    "signal",
    "array",
)
VALUES = (HUGE, f"gpu:{HUGE}", f"{HUGE}:00:00", f"1-{HUGE}", f"USR1@{HUGE}", f"{HUGE}G")
STEPS = ("", f"--nodes={HUGE} --ntasks={HUGE} --ntasks-per-node={HUGE} --gpus={HUGE}")


@pytest.mark.parametrize("option", OPTIONS)
def test_a_script_with_huge_numbers_is_linted(option: str) -> None:
    for value, step, nodes in itertools.product(VALUES, STEPS, (HUGE, "2")):
        script = (
            f"#!/bin/bash\n#SBATCH --{option}={value}\n"
            f"srun {step} torchrun --nnodes={nodes} --nproc-per-node={nodes} "
            f"--master-port={nodes} --rdzv-endpoint=node1:{nodes} train.py ${{@:{nodes}}}\n"
        )
        rules = {remark.rule for remark in lint_script(script).remarks}
        assert "nodes-mismatch" not in rules or option == "nodes"
