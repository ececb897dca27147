"""`dslaunch slurm lint`: check an sbatch script."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import options, ui
from dslaunch.cli.json_option import Json
from dslaunch.cli.lint_output import Github, Ignore, Sarif, Strict, form, ignored_rules, show
from dslaunch.errors import ConfigError, UsageError
from dslaunch.lint import fails
from dslaunch.plural import counted
from dslaunch.slurm.lint import fixed, lint_script
from dslaunch.slurm.rules import rules
from dslaunch.slurm.syntax import has_bash, syntax_fault

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dslaunch.lint import Remark
    from dslaunch.slurm.lint import ScriptLint

LARGEST = 4 * 1024 * 1024
"""Bytes; SLURM refuses scripts beyond max_script_size, 4 MiB by default (slurm.conf(5))."""

Given = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help="Batch scripts; - is standard input.", allow_dash=True),
]
Fix = Annotated[bool, typer.Option("--fix", help="Fix in the files what has one correct fix.")]


def slurm_lint(
    files: Given,
    fix: Fix = False,
    as_json: Json = False,
    sarif: Sarif = False,
    github: Github = False,
    ignore: Ignore = None,
    strict: Strict = False,
) -> None:
    """Check an sbatch script for errors and risks.

    Exit code 3 for an error (with --strict, also for a warning). Nothing is run or submitted.
    `bash -n` parses the script. Relative output directories start at the current directory.

    Example: dslaunch slurm lint train.sbatch --fix
    """
    wanted = form(as_json=as_json, sarif=sarif, github=github)
    ignored = ignored_rules(ignore, rules().names)
    _say_unchecked()
    verdicts, unreadable = options.of_each(files, lambda file: _judged(file, fix, ignored))
    remarks = [remark for verdict in verdicts for remark in verdict.remarks]
    if verdicts:
        show(remarks, wanted, sum(verdict.ignored for verdict in verdicts))
    if wanted == "text":
        _show_good_practice([remark for verdict in verdicts for remark in verdict.good_practice])
    if unreadable is not None:
        raise unreadable
    if fails(remarks, strict=strict):
        sys.exit(ConfigError.exit_code)


def _judged(file: Path, fix: bool, ignore: Collection[str]) -> ScriptLint:
    text = options.read_text(file, LARGEST)
    verdict = _verdict(text, file, ignore)
    return _fix(file, text, verdict, ignore) if fix else verdict


def _directory_exists(directory: str) -> bool:
    return Path(directory).is_dir()


def _verdict(text: str, file: Path, ignore: Collection[str]) -> ScriptLint:
    return lint_script(text, str(file), _directory_exists, syntax_fault(text), ignore)


def _say_unchecked() -> None:
    """Print that the syntax was not checked if there is no suitable bash."""
    if not has_bash():
        ui.say("bash 4 or newer not found: the syntax of the script was not checked")


def _fix(file: Path, text: str, before: ScriptLint, ignore: Collection[str]) -> ScriptLint:
    """Write the fixed text, and return the findings that are left."""
    if str(file) == "-":
        raise UsageError("--fix cannot change standard input", hint="name a file")
    better = fixed(text, _directory_exists, ignore)
    if better == text:
        return before
    ui.write(file, better, "--fix")
    after = _verdict(better, file, ignore)
    gone = len(before.remarks) - len(after.remarks)
    ui.say(f"{file}: fixed {gone} of {counted(len(before.remarks), 'finding')}")
    return after


def _show_good_practice(remarks: Sequence[Remark]) -> None:
    """Print the good practice on standard error."""
    for remark in remarks:
        place = f"{remark.file}:{remark.line}:{remark.column}"
        ui.say(f"{place}: good practice: {remark.message} [{remark.rule}]")
