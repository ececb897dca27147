"""Read files with one JSON object per line, which a process may be writing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from dslaunch.run.run_directory import open_recorded

LARGEST_LINE = 4 << 20
"""Bytes of a line; the rest of a longer one is another damaged line."""
Value = TypeVar("Value")


class SkippedLines(Struct):
    """How many lines were skipped since they are damaged."""

    count: int = 0


def valid_lines(path: Path, read: Callable[[bytes], Value]) -> Iterator[Value]:
    """Yield the values of a file without its damaged lines; a file that cannot be read has none.

    The last line may be incomplete while it is written.
    """
    try:
        file = open_recorded(path)
    except OSError:
        return
    with file:
        while line := file.readline(LARGEST_LINE):
            value = valid_line(line, read)
            if value is not None:
                yield value


def valid_line(line: bytes, read: Callable[[bytes], Value]) -> Value | None:
    """Return the value of a line; None: it is damaged, or a type is another one."""
    try:
        return read(line)
    except ValueError:
        return None
