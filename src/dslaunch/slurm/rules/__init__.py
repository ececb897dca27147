"""The lint rules of sbatch scripts, one module per subject.

A rule is a function that takes a `LintedScript` and yields remarks. `@rule` above it declares its
name, severity, summary and source; `script_mistakes.py` has the texts of what the rules find.
"""

from __future__ import annotations

from functools import cache

from dslaunch.lint.rules import LintRule, Rules, rules_of
from dslaunch.registry import SCRIPT_RULES
from dslaunch.slurm.training_commands import LintedScript

_BEFORE_RULES = (LintRule("syntax-error", "error", "the script is not valid bash", "bash(1), -n"),)
"""Reported by `slurm.lint`, which asks bash."""


@cache
def rules() -> Rules[LintedScript]:
    """Return all rules, those of plugins too. Raises PluginError."""
    return rules_of("slurm/rules", SCRIPT_RULES, more=_BEFORE_RULES)
