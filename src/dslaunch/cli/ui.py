"""What goes where: results on standard output, words for people on standard error."""

from __future__ import annotations

import os
import sys

from dslaunch.errors import DslaunchError

RED, BOLD, PLAIN = "\x1b[31m", "\x1b[1m", "\x1b[0m"


def result(text: str) -> None:
    """Print what the command was asked for."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def say(text: str) -> None:
    """Tell a person something."""
    sys.stderr.write(f"{text}\n")


def error(problem: DslaunchError) -> None:
    """Tell a person what is wrong and what to do; each line of it in its place."""
    for line in problem.message.splitlines():
        say(f"{_paint('error:', RED)} {line}")
    for line in (problem.hint or "").splitlines():
        say(f"{_paint('hint:', BOLD)} {line}")


def _paint(text: str, colour: str) -> str:
    painted = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    return f"{colour}{text}{PLAIN}" if painted else text


def table(rows: list[tuple[str, ...]]) -> str:
    """Align columns by spaces; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
