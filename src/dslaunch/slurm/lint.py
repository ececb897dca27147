"""Check an sbatch script for errors, risks and good practice. Pure: nothing is run, and SLURM is
not queried; the result of `bash -n` is an argument."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from msgspec import Struct

from dslaunch.lint import Remark, fixed_text, in_order, screened, suppressions
from dslaunch.slurm.good_practice import GOOD_PRACTICE
from dslaunch.slurm.rules import rules
from dslaunch.slurm.rules.syntax import refused
from dslaunch.slurm.script import Script
from dslaunch.slurm.syntax import SyntaxFault
from dslaunch.slurm.training_commands import read_launches

ROUNDS = 5
"""The maximum number of passes that fix a text: one fix can reveal another problem."""


class ScriptLint(Struct, frozen=True):
    """The findings in a script."""

    remarks: tuple[Remark, ...]
    good_practice: tuple[Remark, ...]
    """What it does correctly where many scripts fail."""
    ignored: int = 0
    """The number of findings that the script or the command ignores."""


def lint_script(
    text: str,
    file: str = "-",
    directory_exists: Callable[[str], bool] = lambda _: True,
    syntax: SyntaxFault | None = None,
    ignore: Collection[str] = (),
) -> ScriptLint:
    """Check a batch script. `directory_exists` tells which directories of output files exist where
    it is submitted; `syntax` is the syntax error of bash. Rules of `ignore`, and those that
    comments in the script name, are ignored."""
    linted = read_launches(Script(text, file, directory_exists))
    remarks = list(rules().remarks(linted))
    if syntax is not None:
        remarks += refused(linted, syntax)
    remarks = _once(remarks)
    good = _once(remark for rule in GOOD_PRACTICE for remark in rule(linted))
    inside = suppressions(text)
    found = screened(remarks, file=file, known=rules().names, ignore=ignore, inside=inside)
    return ScriptLint(found.kept, in_order(good), found.ignored)


def _once(remarks: Iterable[Remark]) -> list[Remark]:
    """Return one finding per rule and place: a variable and the option with it are the same."""
    found: dict[tuple[str, int, int], Remark] = {}
    for remark in remarks:
        found.setdefault((remark.rule, remark.line, remark.column), remark)
    return list(found.values())


def fixed(
    text: str,
    directory_exists: Callable[[str], bool] = lambda _: True,
    ignore: Collection[str] = (),
) -> str:
    """Return the script with all certain fixes of rules that are not ignored."""
    for _ in range(ROUNDS):
        better = fixed_text(text, lint_script(text, "-", directory_exists, ignore=ignore).remarks)
        if better == text:
            break
        text = better
    return text
