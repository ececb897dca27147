"""Rules for scripts that bash refuses, and for the part of a script that was not checked."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.lint import Remark
from dslaunch.lint.rules import rule
from dslaunch.slurm.rules.directives import PLACEHOLDER
from dslaunch.slurm.script_mistakes import ScriptMistake
from dslaunch.slurm.syntax import SyntaxFault
from dslaunch.slurm.training_commands import LintedScript

ASKED = ("bash", "sh", "dash")
"""The interpreters whose scripts `bash -n` can parse."""


def refused(linted: LintedScript, refusal: SyntaxFault) -> Iterator[Remark]:
    """Find a syntax error of `bash -n`: the job fails when bash reaches that line."""
    script = linted.script
    if script.interpreter not in ASKED or script.is_template:
        return
    line = min(max(refusal.line, 1), len(script.begins))
    begin = script.begins[line - 1]
    text = script.text[begin:].partition("\n")[0]
    placeholder = PLACEHOLDER.search(text)
    mistake = ScriptMistake.SYNTAX_ERROR_IN_TEMPLATE if placeholder else ScriptMistake.SYNTAX_ERROR
    yield mistake.found(
        script,
        begin,
        message=refusal.message,
        placeholder=placeholder[0] if placeholder else "",
        source="bash(1), -n",
    )


@rule(
    "not-read-whole",
    "info",
    "the script has more expansions than the lint follows",
    source="dslaunch, slurm/script.py: MOST_EXPANDED",
)
def unread(linted: LintedScript) -> Iterator[Remark]:
    """Find a script whose variables expand to more text than is checked."""
    script = linted.script
    if script.exhausted:
        yield ScriptMistake.NOT_READ_WHOLE.found(script, 0)
