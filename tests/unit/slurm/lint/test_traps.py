"""Small scripts with one trap each: it is found, where it is, and nothing else is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dslaunch.slurm.lint import fixed, lint_script
from dslaunch.slurm.rules import rules
from dslaunch.slurm.script import Script
from dslaunch.slurm.training_commands import read_launches

HERE = Path(__file__).parent
TRAPS = sorted((HERE / "traps").glob("*.sbatch"))
GOOD = sorted((HERE / "good").glob("*.sbatch"))
EXPECTED = re.compile(r"^# expect: (\d+) (\S+)$", re.MULTILINE)


def read(path: Path) -> str:
    return path.read_bytes().decode()


def no_directory(_: str) -> bool:
    return False


@pytest.mark.parametrize("path", TRAPS, ids=lambda path: path.stem)
def test_a_trap_is_found_in_its_line_and_nothing_else_is_reported(path: Path) -> None:
    text = read(path)
    said = [(str(r.line), r.rule) for r in lint_script(text, path.name, no_directory).remarks]
    assert said == EXPECTED.findall(text)


def test_every_remark_has_a_reason_a_way_out_and_a_source() -> None:
    for path in TRAPS:
        for remark in lint_script(read(path), path.name, no_directory).remarks:
            assert remark.fix, path
            assert remark.source, path
            assert remark.message[-1] != ".", path


@pytest.mark.parametrize("path", TRAPS, ids=lambda path: path.stem)
def test_a_fixed_finding_is_gone_without_a_new_one(path: Path) -> None:
    text = read(path)
    before = lint_script(text, path.name, no_directory).remarks
    after = lint_script(fixed(text, no_directory), path.name, no_directory).remarks
    assert [r.rule for r in after] == [r.rule for r in before if not r.edits]


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_good_script_is_left_in_peace(path: Path) -> None:
    text = read(path)
    assert lint_script(text, path.name, no_directory).remarks == ()
    assert fixed(text, no_directory) == text


def test_our_own_scripts_are_good() -> None:
    golden = sorted((HERE.parents[2] / "golden").glob("*/sbatch-*.sh"))
    scripts = {str(path): read(path) for path in golden if read(path).startswith("#!")}
    said = [str(r) for name, text in scripts.items() for r in lint_script(text, name).remarks]
    assert len(scripts) > 10
    assert said == []


def test_every_rule_has_a_trap() -> None:
    readings = [read_launches(Script(read(path), path.name, no_directory)) for path in TRAPS]
    silent = [
        rule.__name__ for rule in rules().functions if not any(any(rule(one)) for one in readings)
    ]
    assert silent == ["unread"], "the one rule that takes a script too large to be recorded"
    assert (len(TRAPS) >= 40, len(GOOD) >= 15) == (True, True)
