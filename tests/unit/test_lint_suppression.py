"""Rules that a text or a call ignores."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.deepspeed.config_text import parse
from dslaunch.deepspeed.lint import KEY, lint
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.deepspeed.rules import rules as config_rules
from dslaunch.deepspeed.schema import table
from dslaunch.lint import UNKNOWN_RULE, Level, Remark, fails, screened, suppressions
from dslaunch.slurm.lint import lint_script
from dslaunch.slurm.rules import rules as script_rules

KNOWN = ("fixed-port", "no-srun")
SOURCES = Path(__file__).resolve().parents[2] / "src/dslaunch"


def remark(rule: str, line: int, level: Level = "error", path: str = "") -> Remark:
    return Remark(rule, level, "f", line, 1, path, "wrong")


def kept(text: str, *remarks: Remark, ignore: tuple[str, ...] = ()) -> list[tuple[str, int]]:
    found = screened(remarks, file="f", known=KNOWN, ignore=ignore, inside=suppressions(text))
    return [(each.rule, each.line) for each in found.kept]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a  # dslaunch: ignore[fixed-port]\nb", [2]),
        ("a  // dslaunch: ignore[fixed-port]\nb", [2]),
        ("# dslaunch: ignore[fixed-port]\na\nb", [1, 3]),
        ("# dslaunch: ignore[no-srun]\n# dslaunch: ignore[fixed-port]\na\nb", [1, 2, 4]),
        ("# dslaunch: ignore[fixed-port]\na \\\n  b \\\n  c\nd", [1, 5]),
        ("a \\\nb  # dslaunch: ignore[no-srun,  fixed-port]\nc", [1, 3]),
        ("a\nb\n# dslaunch: ignore-file[fixed-port]", []),
        ("# dslaunch: ignore[no-srun]\na", [1, 2]),
        ("# dslaunch: ignore\na", [1, 2]),
    ],
)
def test_a_comment_ignores_rules_for_its_line_the_next_one_or_the_file(
    text: str, lines: list[int]
) -> None:
    every = [remark("fixed-port", n) for n in range(1, text.count("\n") + 2)]
    assert kept(text, *every) == [("fixed-port", line) for line in lines]


def test_a_call_ignores_rules_everywhere() -> None:
    every = [remark("fixed-port", 1), remark("no-srun", 2)]
    assert kept("", *every, ignore=("no-srun",)) == [("fixed-port", 1)]


def test_a_misspelt_rule_ignores_nothing_and_is_named_with_the_right_one() -> None:
    inside = suppressions("a  # dslaunch: ignore[fixed-prot]")
    found = screened([remark("fixed-port", 1)], file="f", known=KNOWN, inside=inside)
    assert [(r.rule, r.level, r.column) for r in found.kept] == [
        ("fixed-port", "error", 1),
        (UNKNOWN_RULE, "warning", 23),
    ]
    assert found.kept[1].fix == "write fixed-port"
    assert found.ignored == 0


@given(st.text(alphabet="#/ \t\n\\[],adslunch:ignore-file", max_size=200))
def test_whatever_is_written_only_rules_that_are_named_are_ignored(text: str) -> None:
    assert ("no-srun", 1) in kept(text, remark("no-srun", 1))


def test_many_comments_take_time_in_proportion() -> None:
    lines = 20_000
    text = "# dslaunch: ignore[fixed-port]\n" * lines + "a \\\n" * lines
    every = [remark("fixed-port", n) for n in range(lines + 1, 2 * lines + 1)]
    assert kept(text, *every) == []


def test_errors_fail_and_with_strict_warnings_too() -> None:
    assert fails([remark("x", 1, "error")])
    assert not fails([remark("x", 1, "warning")])
    assert fails([remark("x", 1, "warning")], strict=True)
    assert not fails([remark("x", 1, "info")], strict=True)


def rules_of(text: str) -> list[tuple[str, str]]:
    return [(r.rule, r.path) for r in lint(LintedConfig(parse(text, "ds.json"), table()))]


def test_a_config_lists_ignored_rules_under_a_separate_key() -> None:
    unknown = '"train_batch_size": 8, "one": 1, "two": {"three": 3}'
    assert rules_of(f"{{{unknown}}}") == [("ignored-key", "one"), ("ignored-key", "two")]
    assert rules_of(f'{{{unknown}, "{KEY}": ["ignored-key:two"]}}') == [("ignored-key", "one")]
    assert rules_of(f'{{{unknown}, "{KEY}": ["ignored-key"]}}') == []
    assert rules_of(f'{{"train_batch_size": 8, "{KEY}": ["ignored"]}}') == [(UNKNOWN_RULE, "")]


def test_comments_hold_in_a_config_and_in_a_script() -> None:
    assert ("ignored-key", "one") not in rules_of(
        '{"train_batch_size": 8,\n "one": 1 // dslaunch: ignore[ignored-key]\n}'
    )
    script = "#!/bin/bash\n#SBATCH --nodes=2\nexport MASTER_PORT=29500\n"
    assert "fixed-port" in {r.rule for r in lint_script(script).remarks}
    commented = script.replace("29500", "29500 # dslaunch: ignore[fixed-port]")
    verdict = lint_script(commented)
    assert "fixed-port" not in {r.rule for r in verdict.remarks}
    assert verdict.ignored == 1


@pytest.mark.parametrize(
    ("directory", "names"), [("deepspeed", config_rules().names), ("slurm", script_rules().names)]
)
def test_every_rule_is_listed_and_no_other(directory: str, names: frozenset[str]) -> None:
    """Only listed rules can be ignored."""
    trees = [
        ast.parse(file.read_text("utf-8"))
        for file in (SOURCES / directory).rglob("*.py")
        if file.name != "names.py"
    ]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    assert {rule for node in nodes for rule in rule_of(node)} - {"right"} <= names
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert names - texts == set()


def rule_of(node: ast.AST) -> list[str]:
    """The rule that a call names where it makes a remark."""
    if not isinstance(node, ast.Call) or not node.args:
        return []
    function = getattr(node.func, "attr", getattr(node.func, "id", ""))
    rule = getattr(node.args[0], "value", None)
    return [rule] if function in ("remark", "Remark") and isinstance(rule, str) else []
