"""Every rule of both lints is declared once, with all that is known of it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from dslaunch.deepspeed.rules import rules as config_rules
from dslaunch.lint.remark import ORDER, Level
from dslaunch.lint.rules import Rules
from dslaunch.slurm.rules import rules as script_rules
from dslaunch.slurm.script_mistakes import ScriptMistake

BOTH = pytest.mark.parametrize("rules", [config_rules(), script_rules()], ids=["config", "script"])
REPORTING = ("error", "warning", "info", "remark")


@BOTH
def test_every_rule_is_declared_once(rules: Rules[Any]) -> None:
    names = [each.name for each in rules.rules]
    assert sorted(names) == sorted(set(names))


@BOTH
def test_every_rule_is_complete(rules: Rules[Any]) -> None:
    for each in rules.rules:
        assert each.severity in get_args(Level)
        assert 0 < len(each.summary) < 80
        assert each.source


def test_mistakes_in_scripts_are_those_of_all_rules_as_severe_as_declared() -> None:
    declared = {each.name: each.severity for each in script_rules().rules}
    levels: dict[str, set[Level]] = {}
    for mistake in ScriptMistake:
        levels.setdefault(mistake.rule, set()).add(mistake.level)
    assert {name: min(found, key=ORDER.index) for name, found in levels.items()} == declared


def test_functions_report_declared_rules_of_configs_only() -> None:
    rules = config_rules()
    modules = {inspect.getmodule(function) for function in rules.functions}
    reported = {
        name for module in modules if module for name in _reported(inspect.getsource(module))
    }
    assert reported
    assert reported <= rules.names


def _reported(source: str) -> Iterator[str]:
    """The names of rules in the calls that make a remark."""
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in REPORTING and call.args:
            name = call.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value
