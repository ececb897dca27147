"""The program of a job, as it is on this machine and as the nodes see it."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from dslaunch.errors import UsageError
from dslaunch.launch.job import Job

SHELL_ENDINGS = (".sh", ".bash")
YAML_ENDINGS = (".yaml", ".yml")


def located(job: Job, cwd: Path) -> Job:
    """Return the job with its program's path as the nodes see it. Raises UsageError."""
    if job.kind == "module":
        return job
    check_runnable(job, cwd)
    if job.kind == "command":
        return replace(job, program=command_path(job.program, cwd))
    return replace(job, program=program_path(job.program, cwd))


def check_runnable(job: Job, cwd: Path) -> None:
    """Raise UsageError for a directory in the place of the script, or another shell's script that
    Python would be given."""
    path = cwd / job.program
    if not job.program:
        return
    if job.kind == "script" and job.program.endswith(YAML_ENDINGS):
        raise UsageError(
            f"script {job.program!r} is a YAML file; the script stands behind the cluster file",
            hint="dslaunch run CLUSTER.yaml SCRIPT [ARGS]...",
        )
    if path.is_dir() and (job.kind == "script" or "/" in job.program):
        scripts = sorted(each.name for each in path.glob("*.py"))
        example = path / (scripts[0] if len(scripts) == 1 else "SCRIPT.py")
        raise UsageError(
            f"script {job.program!r} is a directory", hint=f"name the file to run: {example}"
        )
    if job.kind == "script" and job.program.endswith(SHELL_ENDINGS):
        raise UsageError(
            f"script {job.program!r} is a shell script, and Python would run it",
            hint=f"run it as a program: --no-python {shell_word(job.program)}",
        )


def shell_word(program: str) -> str:
    """The program as a shell would find it."""
    return program if "/" in program else f"./{program}"


def program_path(program: str, cwd: Path) -> str:
    """A script as the nodes see it: relative where it lies below the working directory here,
    absolute where it does not."""
    path = Path(os.path.normpath(cwd / program))
    if not path.is_file() or "/" not in program:
        return program
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def command_path(program: str, cwd: Path) -> str:
    """A program as the nodes see it. One of the working directory keeps its `./`: without a slash
    it would be looked for in PATH.

    Raises UsageError for a file here that cannot be executed, or that PATH does not lead to.
    """
    file = cwd / program
    if "/" not in program:
        if file.is_file() and shutil.which(program) is None:
            raise UsageError(
                f"--no-python {program}: not in PATH, where a name without a slash is looked for",
                hint=f"write ./{program} for the file in the working directory",
            )
        return program
    if file.is_file() and not os.access(file, os.X_OK):
        raise UsageError(
            f"--no-python {program}: the file is not executable", hint=f"chmod +x {program}"
        )
    path = program_path(program, cwd)
    return path if "/" in path else f"./{path}"
