"""The rules of the lint of DeepSpeed configs, a module for each topic.

A rule takes a `LintedConfig` and yields remarks. A module lists its functions in `RULES`, and in
`NAMES` the rules that they report; a name is stable over releases, since people ignore rules by it.
"""

from __future__ import annotations

from functools import cache

from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.lint.rules import Rules, rules_of
from dslaunch.registry import CONFIG_RULES

ALONE = ("syntax", "template", "other-file")
"""Rules that `deepspeed.lint` applies before all others; what they report is reported alone."""


@cache
def rules() -> Rules[LintedConfig]:
    """Return all rules, those of plugins too. Raises PluginError."""
    return rules_of("deepspeed/rules", CONFIG_RULES, more_names=ALONE)
