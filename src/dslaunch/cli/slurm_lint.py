"""`dslaunch slurm lint`: what is wrong, risky and right in an sbatch script."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import options, ui
from dslaunch.cli.lint_output import Github, Ignore, Json, Sarif, Strict, form, ignored_rules, show
from dslaunch.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dslaunch.lint import Remark
    from dslaunch.slurm.lint import ScriptLint

LARGEST = 4 * 1024 * 1024
"""Bytes; SLURM refuses scripts beyond max_script_size, 4 MiB by default (slurm.conf(5))."""

Given = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE", help="A script or several; - for standard input.", allow_dash=True
    ),
]
Fix = Annotated[bool, typer.Option("--fix", help="Mend in the file what is certain.")]


def slurm_lint(
    files: Given,
    fix: Fix = False,
    as_json: Json = False,
    sarif: Sarif = False,
    github: Github = False,
    ignore: Ignore = None,
    strict: Strict = False,
) -> None:
    """Say what is wrong, risky and right in an sbatch script, whoever wrote it.

    Exit code 3 where there is an error (with --strict, a warning). Nothing is run or submitted;
    bash -n reads the script, and the directories of output files are looked for below the current
    one, as if it were submitted from here.

    Example: dslaunch slurm lint train.sbatch --fix
    """
    wanted = form(as_json=as_json, sarif=sarif, github=github)
    from dslaunch.lint import fails
    from dslaunch.slurm.rules import rules

    ignored = ignored_rules(ignore, rules().names)
    _say_unchecked()
    verdicts = [_judged(file, fix, ignored) for file in files]
    remarks = [remark for verdict in verdicts for remark in verdict.remarks]
    show(remarks, wanted, sum(verdict.ignored for verdict in verdicts))
    if wanted == "text":
        _praise([remark for verdict in verdicts for remark in verdict.right])
    if fails(remarks, strict=strict):
        sys.exit(ConfigError.exit_code)


def _judged(file: Path, fix: bool, ignore: Collection[str]) -> ScriptLint:
    text = options.read_text(file, LARGEST)
    verdict = _verdict(text, file, ignore)
    return _mend(file, text, verdict, ignore) if fix else verdict


def _directory_exists(directory: str) -> bool:
    return Path(directory).is_dir()


def _verdict(text: str, file: Path, ignore: Collection[str]) -> ScriptLint:
    from dslaunch.slurm.lint import lint_script
    from dslaunch.slurm.syntax import refusal

    return lint_script(text, str(file), _directory_exists, refusal(text), ignore)


def _say_unchecked() -> None:
    """Unknown is not right: say so where bash could not be asked."""
    from dslaunch.slurm.syntax import can_be_asked

    if not can_be_asked():
        ui.say("no bash 4 or newer here: whether bash takes the script was not checked")


def _mend(file: Path, text: str, before: ScriptLint, ignore: Collection[str]) -> ScriptLint:
    """Write the mended text, and say what is left."""
    from dslaunch.slurm.lint import fixed

    if str(file) == "-":
        raise UsageError("--fix: standard input cannot be mended")
    better = fixed(text, _directory_exists, ignore)
    if better == text:
        return before
    ui.write(file, better, "--fix")
    after = _verdict(better, file, ignore)
    gone = len(before.remarks) - len(after.remarks)
    ui.say(f"{file}: mended; {gone} of {len(before.remarks)} remarks are gone")
    return after


def _praise(right: Sequence[Remark]) -> None:
    """What to keep, for people alone."""
    for remark in right:
        ui.say(f"{remark.file}:{remark.line}:{remark.column}: right: {remark.message}")
