"""The rules of the lint of sbatch scripts, a module for each subject.

A rule takes a `Reading` and yields remarks. A module lists its functions in `RULES`, and in `NAMES`
the rules that they report; a name is stable over releases, since people ignore rules by it.
"""

from __future__ import annotations

from functools import cache

from dslaunch.lint.rules import Rules, rules_of
from dslaunch.registry import SCRIPT_RULES
from dslaunch.slurm.training_commands import Reading


@cache
def rules() -> Rules[Reading]:
    """Return all rules, those of plugins too. Raises PluginError."""
    return rules_of("slurm/rules", SCRIPT_RULES)
