"""Results on standard output, messages on standard error.

Both may contain text from nodes, files or other users, so control characters are escaped.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dslaunch.errors import ConfigError, DslaunchError, NodeError, Problem, UsageError
from dslaunch.json_text import json_text
from dslaunch.terminal import PLAIN, colored, cut, one_line, visible
from dslaunch.whole_file import write_whole

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Any

    from dslaunch.registry import Registry

RED, BOLD = "\x1b[31m", "\x1b[1m"
GAP = "  "
EXCERPT = 100
"""Characters of a source line that are shown with a problem."""
LONGEST_ERROR = 8192
"""Characters of a line of an error, which may quote a word of the command line; a path has at most
4,096."""
NARROWEST = 12
"""Columns that a cell of a table keeps at least."""


def result(text: str, *, colors: bool = False) -> None:
    """Print a command's result; with `colors` keep the text's own colors.

    If the reader has exited, as in `| head -1`, exit as SIGPIPE would end the program.
    Raises DslaunchError if it cannot be written, as on a full disk.
    """
    _print(colored(text) if colors else visible(text))


def data(value: object, *, indent: int | None = 2) -> None:
    """Print the result as JSON."""

    result(json_text(value, indent=indent))


def document(text: str, output: Path | None = None) -> None:
    """Print a text for programs, such as a batch script: exact, except on a terminal.

    With `output`, write it to that file instead, unless it is `-`. Raises UsageError.
    """
    if output is None or str(output) == "-":
        _print(visible(text) if sys.stdout.isatty() else text)
    else:
        write(output, text, "--output", errors="surrogateescape")


def write(path: Path, text: str, option: str, *, errors: str = "strict") -> None:
    """Write the file of an option, line ends unchanged, and say so. Raises UsageError."""
    try:
        write_whole(path, text.encode("utf-8", errors))
    except OSError as problem:
        raise UsageError(f"{option} {path}: {problem.strerror}") from None
    wrote(path)


def wrote(path: Path) -> None:
    """Print the name of a file that has been written."""
    say(f"wrote {path}")


def write_new(path: Path, text: str, option: str, *, force: bool) -> None:
    """Write a file that must not exist unless `force`, and say so. Raises UsageError."""
    if os.path.lexists(path) and not force:
        hint = "add --force to replace it, or name another file"
        raise UsageError(f"{option} {path}: file exists", hint=hint)
    write(path, text, option)


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
    """Print a message on standard error; a failure to write is ignored."""
    _tell(visible(text))


def warn_of_unused_plugins(*kinds: Registry[Any]) -> None:
    """Print a warning for each part of a plugin whose name is that of a built-in part."""
    for kind in kinds:
        for unused in kind.unused():
            say(f"warning: {unused} [{unused.code}]")


def tell(text: str) -> None:
    """Print a message about a run, among the output of its ranks."""
    say(f"dslaunch: {text}")


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def error(problem: DslaunchError) -> None:
    """Print an error and its hint, each line with its prefix.

    The same failure of several nodes is one line; failures with the same hint stand above it.
    """
    if isinstance(problem, NodeError):
        _node_errors(problem)
        return
    if isinstance(problem, ConfigError):
        for each in problem.problems:
            _error_lines(str(each))
            for line in excerpt(each):
                _tell(line)
    else:
        _error_lines(problem.message)
    _hint_lines(problem.hint)


def _node_errors(problem: NodeError) -> None:
    from dslaunch.cluster.failures import folded

    by_hint: dict[str | None, list[str]] = {}
    for failure in folded(problem.failures):
        by_hint.setdefault(failure.hint, []).append(str(failure))
    for hint, messages in by_hint.items():
        for message in messages:
            _error_lines(message)
        _hint_lines(hint)


def _error_lines(message: str) -> None:
    for line in visible(message).splitlines():
        _tell(f"{_paint('error:', RED)} {cut(line, LONGEST_ERROR)}")


def _hint_lines(hint: str | None) -> None:
    for line in visible(hint or "").splitlines():
        _tell(f"{_paint('hint:', BOLD)} {line}")


def excerpt(problem: Problem) -> list[str]:
    """Return the source line of a problem with a caret below its place; empty: unknown."""
    if not problem.source.strip():
        return []
    start = max(0, problem.column - 1 - EXCERPT // 2)
    # a tab counts as one column, and so must its replacement
    text = one_line(problem.source.replace("\t", " ")[start : start + EXCERPT])
    before = one_line(problem.source.replace("\t", " ")[start : problem.column - 1])
    number = str(problem.line)
    return [f"  {number} | {text}", f"  {' ' * len(number)} | {' ' * len(before)}^"]


def show_traceback(
    kind: type[BaseException], problem: BaseException, trace: TracebackType | None
) -> None:
    """Print an unexpected exception; its text may contain what a node sent."""
    import traceback

    say("".join(traceback.format_exception(kind, problem, trace)).rstrip("\n"))


def width() -> int | None:
    """Return the columns that a result must fit; None if unlimited, as in a file."""
    if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
        import shutil

        return shutil.get_terminal_size().columns
    return None


def table(rows: Sequence[tuple[str, ...]], fit: int | None = None) -> str:
    """Return rows with aligned columns; the first row is the head.

    With `fit`, the widest cells are wrapped at commas and spaces until the table has that many
    columns; a longer word is not broken. Line ends in cells are escaped.
    """
    safe = [tuple(map(one_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    if fit is not None:
        columns = list(zip(*safe, strict=True))
        least = [max(NARROWEST, *map(_longest_word, column)) for column in columns]
        widths = _narrowed(widths, least, fit - len(GAP) * (len(widths) - 1))
    return "\n".join(line for row in safe for line in _row(row, widths))


def _longest_word(cell: str) -> int:
    """Return the length of the longest part of a cell that is not broken."""
    return max(len(word.rstrip()) for word in _words(cell))


def _narrowed(widths: list[int], least: list[int], room: int) -> list[int]:
    """Return the widths, with the widest reduced one by one until all fit or have their least."""
    narrowed = list(widths)
    for _ in range(max(0, sum(widths) - room)):
        wide = [at for at, width in enumerate(narrowed) if width > least[at]]
        if not wide:
            break
        narrowed[max(wide, key=narrowed.__getitem__)] -= 1
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
    """Return lines broken after commas and spaces, at most `width` long where possible."""
    if len(cell) <= width:
        return [cell.rstrip()]
    lines = [""]
    for word in _words(cell):
        if lines[-1] and len((lines[-1] + word).rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return [line.rstrip() for line in lines]


def _words(cell: str) -> list[str]:
    """Return the parts between which a cell may be broken: each ends in its commas and spaces.

    Commas and spaces at the beginning of the cell belong to its first part.
    """
    return re.findall(r"[, ]*[^, ]+[, ]*", cell) or [cell]


def _forget_stdout() -> None:
    """Send the interpreter's final flush to /dev/null (Python's `signal` documentation)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _paint(text: str, color: str) -> str:
    painted = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    return f"{color}{text}{PLAIN}" if painted else text
