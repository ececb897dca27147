"""Locate the program of a job on this machine and on the nodes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from msgspec.structs import replace

from dslaunch.errors import UsageError
from dslaunch.launch.job import Job

SHELL_ENDINGS = (".sh", ".bash")
YAML_ENDINGS = (".yaml", ".yml")
BATCH_ENDINGS = (".sbatch", ".slurm")
CONFIG_ENDINGS = (".json", ".jsonc", ".hjson")
NOTEBOOK_ENDING = ".ipynb"
STARTERS = ("python", "python3", "torchrun", "deepspeed", "accelerate", "mpirun", "srun")
"""Programs that stand before the script where dslaunch is not used."""


def located(job: Job, cwd: Path) -> Job:
    """Return the job with the path of its program on the nodes. Raises UsageError."""
    if job.kind == "module":
        return job
    check_runnable(job, cwd)
    if job.kind == "command":
        return replace(job, program=command_path(job.program, cwd))
    return replace(job, program=program_path(job.program, cwd))


def check_runnable(job: Job, cwd: Path) -> None:
    """Raise UsageError if the script is a directory, or a shell script that would run in Python."""
    path = cwd / job.program
    if not job.program:
        return
    if job.kind == "script" and job.program.endswith(YAML_ENDINGS):
        raise UsageError(
            f"script {job.program!r} is a YAML file; put the script after the cluster file",
            hint="use this order: CLUSTER.yaml SCRIPT [ARG]...",
        )
    if path.is_dir() and (job.kind == "script" or "/" in job.program):
        scripts = sorted(each.name for each in path.glob("*.py"))
        example = path / (scripts[0] if len(scripts) == 1 else "SCRIPT.py")
        raise UsageError(
            f"script {job.program!r} is a directory", hint=f"name the file to run: {example}"
        )
    if job.kind == "script":
        _check_python(job.program, exists=path.exists())


def _check_python(script: str, *, exists: bool) -> None:
    """Raise UsageError for a script that is certainly no Python."""
    if script.endswith(SHELL_ENDINGS):
        raise UsageError(
            f"script {script!r} is a shell script, but would run in Python",
            hint=f"run it as a program: --no-python {shell_word(script)}",
        )
    if script.endswith(BATCH_ENDINGS):
        raise UsageError(
            f"script {script!r} is a batch script of SLURM, but would run in Python",
            hint=f"name the training script; `dslaunch slurm lint {script}` checks this one",
        )
    if script.endswith(CONFIG_ENDINGS):
        raise UsageError(
            f"script {script!r} is a config, but would run in Python",
            hint=f"name the training script first: SCRIPT --deepspeed_config {script}",
        )
    if script.endswith(NOTEBOOK_ENDING):
        raise UsageError(
            f"script {script!r} is a notebook, but would run in Python",
            hint=f"convert it: jupyter nbconvert --to script {script}",
        )
    if script in STARTERS and not exists:
        raise UsageError(
            f"script {script!r} is the name of a program that starts scripts",
            hint="name the script alone: dslaunch starts it; --launcher NAME chooses the launcher",
        )


def shell_word(program: str) -> str:
    """Return the program as a word of a shell command."""
    return program if "/" in program else f"./{program}"


def program_path(program: str, cwd: Path) -> str:
    """Return the path of a script on the nodes: relative if it is below the local working
    directory, otherwise absolute."""
    path = Path(os.path.normpath(cwd / program))
    if not path.is_file() or "/" not in program:
        return program
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def command_path(program: str, cwd: Path) -> str:
    """Return the path of a program on the nodes. A program in the working directory keeps its `./`:
    without a slash it would be searched in PATH.

    Raises UsageError for a local file that is not executable, or not in PATH.
    """
    file = cwd / program
    if "/" not in program:
        if file.is_file() and shutil.which(program) is None:
            raise UsageError(
                f"--no-python {program}: not found in PATH",
                hint=f"write ./{program} for the file in the working directory",
            )
        return program
    if file.is_file() and not os.access(file, os.X_OK):
        raise UsageError(
            f"--no-python {program}: the file is not executable", hint=f"chmod +x {program}"
        )
    path = program_path(program, cwd)
    return path if "/" in path else f"./{path}"
