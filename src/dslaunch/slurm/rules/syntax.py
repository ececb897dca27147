"""What bash itself refuses, and what was not read here."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.lint import Remark
from dslaunch.slurm.rules.directives import PLACEHOLDER
from dslaunch.slurm.syntax import SyntaxFault
from dslaunch.slurm.training_commands import Reading

ASKED = ("bash", "sh", "dash")
"""The interpreters whose scripts bash reads."""


def refused(reading: Reading, refusal: SyntaxFault) -> Iterator[Remark]:
    """A script that `bash -n` does not take: the job ends where bash gets to that line."""
    script = reading.script
    if script.interpreter not in ASKED or script.is_template:
        return
    line = min(max(refusal.line, 1), len(script.begins))
    begin = script.begins[line - 1]
    text = script.text[begin:].partition("\n")[0]
    placeholder = PLACEHOLDER.search(text)
    yield script.remark(
        "syntax-error",
        "error",
        begin,
        f"bash refuses the script: {refusal.message}",
        fix=f"replace {placeholder[0]}"
        if placeholder
        else "look for a quote, bracket, fi, done or here-document that is not closed at or above"
        " this line; bash -n SCRIPT tells whether it is mended",
        source="bash(1), -n",
    )


def unread(reading: Reading) -> Iterator[Remark]:
    """A script whose variables stand for more text than is looked at."""
    script = reading.script
    if script.exhausted:
        yield script.remark(
            "not-read-whole",
            "info",
            0,
            "its variables and functions stand for more text than is looked at: what comes of the"
            " rest of them was not checked",
            fix="write the launch commands without so many variables in each other",
            source="dslaunch, slurm/script.py: MOST_EXPANDED",
        )


NAMES = ("not-read-whole", "syntax-error")
RULES = (unread,)
