"""Find errors in the DeepSpeed configs of a job before its start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.deepspeed.storage import find_config, parse
from dslaunch.errors import ConfigError, ErrorCode, PlanError
from dslaunch.launch.decisions import Decision, DecisionCode, decision
from dslaunch.run.job_files import read_small

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dslaunch.cluster.model import Allocation
    from dslaunch.launch.job import Job
    from dslaunch.lint import Remark


def config_errors(
    job: Job, cwd: Path, allocation: Allocation, more: Iterable[Path] = ()
) -> tuple[Remark, ...]:
    """Return the errors of `dslaunch config lint`, for these ranks and arguments, in the config
    among the arguments and in `more`, those that the code names.

    Configs that are not here or cannot be read have none: the start fails anyway.
    """
    found = find_config(job.args)
    words = [word for word in job.args if isinstance(word, str)]
    errors: list[Remark] = []
    named = cwd / found.path if found else None
    if found is not None and named is not None:
        errors += _errors_of(named, found.path, allocation, words)
    for path in more:
        if path != named:
            shown = path.relative_to(cwd) if path.is_relative_to(cwd) else path
            remarks = _errors_of(path, str(shown), allocation, None)
            errors += [remark for remark in remarks if not remark.path.startswith(SET_BY_CODE)]
    return tuple(errors)


SET_BY_CODE = ("train_", "gradient_accumulation_steps")
"""What a program that reads a config often fills in before it gives it to DeepSpeed: not judged by
the file that the code names. Nor is what the file lacks."""


def _errors_of(
    path: Path, name: str, allocation: Allocation, words: list[str] | None
) -> list[Remark]:
    """Return the errors of one config. `words`: the script's arguments; None: not about it."""
    # only for jobs with a config: these modules take 11 ms
    from dslaunch.deepspeed.arguments import read
    from dslaunch.deepspeed.batch import parallelism
    from dslaunch.deepspeed.hardware import hardware_of
    from dslaunch.deepspeed.lint import lint
    from dslaunch.deepspeed.lint import read as read_config
    from dslaunch.deepspeed.linted_config import LintedConfig
    from dslaunch.deepspeed.schema import table

    try:
        document, reader = read_config(path.read_text("utf-8"), name, words=words or ())
    except (ConfigError, OSError, UnicodeDecodeError):
        return []
    subject = LintedConfig(
        document=document,
        table=table(),
        reader=reader,
        arguments=read(words) if words is not None else None,
        parallelism=parallelism(document.data, allocation.world_size),
        nodes=hardware_of(allocation),
    )
    found = [remark for remark in lint(subject) if remark.level == "error"]
    return [remark for remark in found if words is not None or remark.path]


def refuse(errors: tuple[Remark, ...]) -> None:
    """Raise PlanError for a job whose config has errors."""
    if not errors:
        return
    fixes = dict.fromkeys(error.fix for error in errors if error.fix)
    places = (f"{error.file}:{error.line}:{error.column}" for error in errors)
    lines = (
        ": ".join(part for part in (place, error.path, error.message) if part)
        for place, error in zip(places, errors, strict=True)
    )
    raise PlanError(
        "\n".join(lines),
        hint="\n".join([*fixes, "or start the job despite them with --force"]),
        code=ErrorCode.CONFIG_ERRORS,
    )


def offloads_to_host(job: Job, cwd: Path, more: Iterable[Path] = ()) -> bool:
    """Return whether the config among the arguments, or one of `more`, those that the code names,
    keeps states in the nodes' memory.

    No config here, or one that cannot be read, counts as no.
    """
    found = find_config(job.args)
    named = (cwd / found.path,) if found else ()
    return any(_offloads(path) for path in (*named, *more))


def _offloads(path: Path) -> bool:
    """Return whether a config offloads; the deprecated key `cpu_offload` still has the same effect
    (DeepSpeed 0.19.8, runtime/zero/config.py)."""
    text = read_small(path)
    if text is None:
        return False
    try:
        zero = parse(text, path.name).get("zero_optimization")
    except ConfigError:
        return False
    if not isinstance(zero, dict):
        return False
    sections = (zero.get("offload_optimizer"), zero.get("offload_param"))
    devices = [section.get("device") for section in sections if isinstance(section, dict)]
    return "cpu" in devices or zero.get("cpu_offload") is True


def warnings(errors: tuple[Remark, ...]) -> tuple[Decision, ...]:
    """Return the errors as decisions of a plan, for a job that is started in spite of them."""
    return tuple(
        decision(
            DecisionCode.CONFIG_ERROR,
            file=error.file,
            line=error.line,
            path=error.path,
            message=error.message,
            fix=error.fix or error.rule,
        )
        for error in errors
    )
