"""What is wrong with the DeepSpeed config of a job that is about to start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.deepspeed.storage import find_config
from dslaunch.launch.plan import Decision

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation
    from dslaunch.launch.job import Job
    from dslaunch.lint import Remark


def config_errors(job: Job, cwd: Path, allocation: Allocation) -> tuple[Remark, ...]:
    """What DeepSpeed would ignore, or stop at, in the config among the arguments: the errors of
    `dslaunch config lint`, for these ranks and arguments. None where there is no config here, or
    where it cannot be read: that stops a start anyway."""
    found = find_config(job.args)
    path = cwd / found.path if found else None
    if found is None or path is None or not path.is_file():
        return ()
    from dslaunch.deepspeed.arguments import read
    from dslaunch.deepspeed.batch import parallelism
    from dslaunch.deepspeed.hardware import hardware_of
    from dslaunch.deepspeed.lint import guess_reader, lint
    from dslaunch.deepspeed.schema import table
    from dslaunch.deepspeed.subject import Subject
    from dslaunch.deepspeed.text import parse
    from dslaunch.errors import ConfigError

    words = [word for word in job.args if isinstance(word, str)]
    try:
        document = parse(path.read_text("utf-8"), found.path)
    except (ConfigError, OSError, UnicodeDecodeError):
        return ()
    subject = Subject(
        document,
        table(),
        guess_reader(document, words),
        read(words),
        parallelism(document.data, allocation.world_size),
        hardware_of(allocation),
    )
    return tuple(remark for remark in lint(subject) if remark.level == "error")


def warnings(errors: tuple[Remark, ...]) -> tuple[Decision, ...]:
    """Them among a plan's decisions."""
    return tuple(Decision("warning", str(error), error.fix or error.rule) for error in errors)
