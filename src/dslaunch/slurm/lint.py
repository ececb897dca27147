"""What is wrong, risky and right in an sbatch script. Pure: nothing is run, and SLURM not asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dslaunch.lint import Remark, in_order, mended
from dslaunch.slurm.launches import read_launches
from dslaunch.slurm.rules import counts, directives, ends, master, ranks, right, steps
from dslaunch.slurm.script import Script

RULES = (
    *directives.RULES,
    *ranks.RULES,
    *master.RULES,
    *counts.RULES,
    *steps.RULES,
    *ends.RULES,
)
ROUNDS = 5
"""How often a mended text is looked at again: mending one thing can show another."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What there is to say about a script."""

    remarks: tuple[Remark, ...]
    right: tuple[Remark, ...]
    """What it does as it should, where others go wrong."""


def lint_script(
    text: str, file: str = "-", directory_exists: Callable[[str], bool] = lambda _: True
) -> Verdict:
    """Read a batch script. `directory_exists` is asked about the directories of its output files,
    as seen from where it is submitted."""
    reading = read_launches(Script(text, file, directory_exists))
    remarks = _once(remark for rule in RULES for remark in rule(reading))
    good = _once(remark for rule in right.RULES for remark in rule(reading))
    return Verdict(in_order(remarks), in_order(good))


def _once(remarks: Iterable[Remark]) -> list[Remark]:
    """One of a rule at a place: a variable and the option that takes it are one and the same."""
    found: dict[tuple[str, int, int], Remark] = {}
    for remark in remarks:
        found.setdefault((remark.rule, remark.line, remark.column), remark)
    return list(found.values())


def fixed(text: str, directory_exists: Callable[[str], bool] = lambda _: True) -> str:
    """The script with everything mended that is certain."""
    for _ in range(ROUNDS):
        better = mended(text, lint_script(text, "-", directory_exists).remarks)
        if better == text:
            break
        text = better
    return text
