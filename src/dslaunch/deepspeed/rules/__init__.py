"""The rules of the lint of DeepSpeed configs, a module for each subject.

A rule is a function that takes a `LintedConfig` and yields remarks. `@rule` above it declares its
name, severity, summary and source.
"""

from __future__ import annotations

from functools import cache

from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.lint.rules import LintRule, Rules, rules_of
from dslaunch.registry import CONFIG_RULES

_BEFORE_RULES = (
    LintRule("syntax", "error", "the config is neither JSON nor HJSON", "DeepSpeed reads HJSON"),
    LintRule("template", "warning", "the file is a template with placeholders", "dslaunch"),
    LintRule("other-file", "warning", "the file is not a DeepSpeed config", "dslaunch"),
)
"""Reported by `deepspeed.lint` for a text to which no other rule can be applied."""


@cache
def rules() -> Rules[LintedConfig]:
    """Return all rules, also those of plugins. Raises PluginError."""
    return rules_of("deepspeed/rules", CONFIG_RULES, more=_BEFORE_RULES)
