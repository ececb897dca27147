"""What goes where: results on standard output, words for people on standard error."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence

from dslaunch.errors import DslaunchError

RED, BOLD, PLAIN = "\x1b[31m", "\x1b[1m", "\x1b[0m"
GAP = "  "
NARROWEST = 12
"""Columns that a cell of a table keeps however narrow the terminal is."""


def result(text: str) -> None:
    """Print what the command was asked for.

    When the reader is gone, as in `| head -1`, leave as a program does that SIGPIPE ends.
    Raises DslaunchError when it cannot be written, as on a full disk.
    """
    try:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
        raise SystemExit(141) from None
    except OSError as problem:
        _forget_stdout()
        raise DslaunchError(f"standard output: {problem.strerror}") from None


def say(text: str) -> None:
    """Tell a person something, if that can be."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def error(problem: DslaunchError) -> None:
    """Tell a person what is wrong and what to do; each line of it in its place."""
    for line in problem.message.splitlines():
        say(f"{_paint('error:', RED)} {line}")
    for line in (problem.hint or "").splitlines():
        say(f"{_paint('hint:', BOLD)} {line}")


def width() -> int | None:
    """How many columns a result should fit; None where nobody has said, as into a file."""
    if os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty():
        import shutil

        return shutil.get_terminal_size().columns
    return None


def table(rows: Sequence[tuple[str, ...]], fit: int | None = None) -> str:
    """Align columns by spaces; the first row is the head.

    With `fit`, the widest cells are continued on further lines, at commas and spaces, until the
    table is so many columns wide; a longer word stays whole.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while fit is not None and sum(widths) + len(GAP) * (len(widths) - 1) > fit:
        if max(widths) <= NARROWEST:
            break
        widths[widths.index(max(widths))] -= 1
    return "\n".join(line for row in rows for line in _row(row, widths))


def _row(row: tuple[str, ...], widths: list[int]) -> list[str]:
    cells = [_broken(cell, width) for cell, width in zip(row, widths, strict=True)]
    height = max(map(len, cells))
    padded = [cell + [""] * (height - len(cell)) for cell in cells]
    return [
        GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*padded, strict=True)
    ]


def _broken(cell: str, width: int) -> list[str]:
    """Break behind commas and spaces, so that no line is longer than `width` if that can be."""
    lines = [""]
    for word in re.findall(r"[^, ]*(?:[, ]+|$)", cell):
        if lines[-1] and len((lines[-1] + word).rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return [line.rstrip() for line in lines]


def _forget_stdout() -> None:
    """Let the interpreter's own flush at the end go nowhere (Python's `signal` documentation)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _paint(text: str, colour: str) -> str:
    painted = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    return f"{colour}{text}{PLAIN}" if painted else text
