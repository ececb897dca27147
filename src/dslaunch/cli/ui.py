"""What goes where: results on standard output, words for people on standard error.

Both may hold what nodes, files or other users chose: control characters in it are spelled out.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dslaunch.errors import ConfigError, DslaunchError, NodeError, Problem, UsageError
from dslaunch.terminal import PLAIN, colored, one_line, visible

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

RED, BOLD = "\x1b[31m", "\x1b[1m"
GAP = "  "
EXCERPT = 100
"""Characters of a line that is shown with a problem."""
NARROWEST = 12
"""Columns that a cell of a table keeps however narrow the terminal is."""


def result(text: str, *, colors: bool = False) -> None:
    """Print what the command was asked for; with `colors` the text's own colors are kept.

    When the reader is gone, as in `| head -1`, leave as a program does that SIGPIPE ends.
    Raises DslaunchError when it cannot be written, as on a full disk.
    """
    _print(colored(text) if colors else visible(text))


def data(value: object, *, indent: int | None = 2) -> None:
    """Print the result as JSON."""
    import json

    result(json.dumps(value, indent=indent))


def document(text: str, output: Path | None = None) -> None:
    """Print a text that programs read, such as a batch script: exact, except on a terminal.

    With `output` write it into that file. Raises UsageError.
    """
    if output is None:
        _print(visible(text) if sys.stdout.isatty() else text)
    else:
        write(output, text, "--output", errors="surrogateescape")


def write(path: Path, text: str, option: str, *, errors: str = "strict") -> None:
    """Write the file that an option names, line ends as they are. Raises UsageError."""
    try:
        path.write_text(text, "utf-8", errors, newline="")
    except OSError as problem:
        raise UsageError(f"{option} {path}: {problem.strerror}") from None


def write_new(path: Path, text: str, option: str, *, force: bool) -> None:
    """Write a file that must not be there yet, unless `force`, and say so. Raises UsageError."""
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        hint = "--force replaces it, or name another file"
        raise UsageError(f"{option} {path}: is there already", hint=hint) from None
    except OSError as problem:
        raise UsageError(f"{option} {path}: {problem.strerror}") from None


def _print(text: str) -> None:
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
    _tell(visible(text))


def tell(text: str) -> None:
    """Tell a person what happens with a run, between what its ranks write."""
    say(f"dslaunch: {text}")


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def error(problem: DslaunchError) -> None:
    """Tell a person what is wrong and what to do; each line of it in its place.

    The same trouble of many nodes is one line with one hint.
    """
    message, hint = problem.message, problem.hint or ""
    if isinstance(problem, NodeError):
        from dslaunch.cluster.failures import folded

        troubles = folded(problem.failures)
        message = "\n".join(map(str, troubles))
        hint = "\n".join(dict.fromkeys(t.hint for t in troubles if t.hint))
    if isinstance(problem, ConfigError):
        for each in problem.problems:
            for line in visible(str(each)).splitlines():
                _tell(f"{_paint('error:', RED)} {line}")
            for line in excerpt(each):
                _tell(line)
    else:
        for line in visible(message).splitlines():
            _tell(f"{_paint('error:', RED)} {line}")
    for line in visible(hint).splitlines():
        _tell(f"{_paint('hint:', BOLD)} {line}")


def excerpt(problem: Problem) -> list[str]:
    """Return the line that a problem is in, with a caret below its place; empty: it is unknown."""
    if not problem.source.strip():
        return []
    start = max(0, problem.column - 1 - EXCERPT // 2)
    # a tab is one column, and so must be what takes its place
    text = one_line(problem.source.replace("\t", " ")[start : start + EXCERPT])
    before = one_line(problem.source.replace("\t", " ")[start : problem.column - 1])
    number = str(problem.line)
    return [f"  {number} | {text}", f"  {' ' * len(number)} | {' ' * len(before)}^"]


def show_traceback(
    kind: type[BaseException], problem: BaseException, trace: TracebackType | None
) -> None:
    """Print an unexpected exception; its text may quote what a node sent."""
    import traceback

    say("".join(traceback.format_exception(kind, problem, trace)).rstrip("\n"))


def width() -> int | None:
    """How many columns a result should fit; None where nobody has said, as into a file."""
    if os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty():
        import shutil

        return shutil.get_terminal_size().columns
    return None


def table(rows: Sequence[tuple[str, ...]], fit: int | None = None) -> str:
    """Align columns by spaces; the first row is the head.

    With `fit`, the widest cells are continued on further lines, at commas and spaces, until the
    table is so many columns wide; a longer word stays whole. A line end in a cell is spelled out.
    """
    safe = [tuple(map(one_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    if fit is not None:
        widths = _narrowed(widths, fit - len(GAP) * (len(widths) - 1))
    return "\n".join(line for row in safe for line in _row(row, widths))


def _narrowed(widths: list[int], room: int) -> list[int]:
    """Take columns from the widest cells until all fit, or none is wider than NARROWEST."""
    narrowed = list(widths)
    excess = sum(narrowed) - room
    while excess > 0 and max(narrowed) > NARROWEST:
        widest = max(narrowed)
        tied = [at for at, width in enumerate(narrowed) if width == widest]
        limit = max([NARROWEST, *(width for width in narrowed if width < widest)])
        each = min(widest - limit, excess // len(tied))
        if each == 0:
            tied, each = tied[:excess], 1
        for at in tied:
            narrowed[at] -= each
        excess -= each * len(tied)
    return narrowed


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
    if len(cell) <= width:
        return [cell.rstrip()]
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
