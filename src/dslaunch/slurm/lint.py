"""What is wrong, risky and right in an sbatch script. Pure: nothing is run, and SLURM not asked;
what `bash -n` says of it comes in as a value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from dslaunch.lint import Remark, in_order, mended, mentions, screened
from dslaunch.slurm.good_practice import GOOD_PRACTICE
from dslaunch.slurm.rules import rules
from dslaunch.slurm.rules.syntax import refused
from dslaunch.slurm.script import Script
from dslaunch.slurm.syntax import SyntaxFault
from dslaunch.slurm.training_commands import read_launches

ROUNDS = 5
"""How often a mended text is looked at again: mending one thing can show another."""


@dataclass(frozen=True, slots=True)
class ScriptLint:
    """What there is to say about a script."""

    remarks: tuple[Remark, ...]
    right: tuple[Remark, ...]
    """What it does as it should, where others go wrong."""
    ignored: int = 0
    """How many remarks are left out, since the script or the call ignores their rules."""


def lint_script(
    text: str,
    file: str = "-",
    directory_exists: Callable[[str], bool] = lambda _: True,
    refusal: SyntaxFault | None = None,
    ignore: Collection[str] = (),
) -> ScriptLint:
    """Read a batch script. `directory_exists` is asked about the directories of its output files,
    as seen from where it is submitted; `refusal` is why bash does not take it. Left out are the
    rules of `ignore` and those that comments in the script name."""
    reading = read_launches(Script(text, file, directory_exists))
    remarks = list(rules().remarks(reading))
    if refusal is not None:
        remarks += refused(reading, refusal)
    remarks = _once(remarks)
    good = _once(remark for rule in GOOD_PRACTICE for remark in rule(reading))
    said = mentions(text)
    found = screened(remarks, file=file, known=rules().names, ignore=ignore, said=said)
    return ScriptLint(found.kept, in_order(good), found.ignored)


def _once(remarks: Iterable[Remark]) -> list[Remark]:
    """One of a rule at a place: a variable and the option that takes it are one and the same."""
    found: dict[tuple[str, int, int], Remark] = {}
    for remark in remarks:
        found.setdefault((remark.rule, remark.line, remark.column), remark)
    return list(found.values())


def fixed(
    text: str,
    directory_exists: Callable[[str], bool] = lambda _: True,
    ignore: Collection[str] = (),
) -> str:
    """The script with everything mended that is certain and not ignored."""
    for _ in range(ROUNDS):
        better = mended(text, lint_script(text, "-", directory_exists, ignore=ignore).remarks)
        if better == text:
            break
        text = better
    return text
