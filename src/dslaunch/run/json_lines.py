"""Read files with one JSON object per line, which a process may be writing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

LARGEST_LINE = 4 << 20
"""Bytes of a line; the rest of a longer one is another damaged line."""
Value = TypeVar("Value")


@dataclass(slots=True)
class SkippedLines:
    """How many lines were skipped since they are damaged."""

    count: int = 0


def valid_lines(
    path: Path, adapter: TypeAdapter[Value], skipped: SkippedLines | None = None
) -> Iterator[Value]:
    """Yield the values of a file; damaged lines are counted and skipped.

    A file that cannot be read has none. The last line may be incomplete while it is written.
    """
    skipped = skipped or SkippedLines()
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        while line := file.readline(LARGEST_LINE):
            is_complete = line.endswith(b"\n") or len(line) == LARGEST_LINE
            try:
                yield adapter.validate_json(line)
            except (ValueError, RecursionError):
                skipped.count += int(is_complete)
