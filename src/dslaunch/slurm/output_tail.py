"""Find where the last selected lines begin in the output of a job, without reading all of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dslaunch.run.events import Line
from dslaunch.run.lines import printable

if TYPE_CHECKING:
    from dslaunch.run.log_selection import LogSelection
    from dslaunch.slurm.output import OutputReader

BLOCK = 64 * 1024
"""Bytes that are read at a time."""
MOST_WITHOUT_END = 16 << 20
"""Bytes without a line end; before so many nothing is looked for."""


def start_of_last_lines(fd: int, reader: OutputReader, selection: LogSelection) -> int:
    """Return where the last `tail` lines begin that the selection has, in bytes. Raises OSError."""
    end = os.fstat(fd).st_size
    wanted = selection.tail or 0
    if not wanted:
        return end
    found = 0
    for start, line in lines_backward(fd, end):
        host, rank, text = reader.read(line)
        shown = printable(text.rstrip(b"\n"))
        found += selection.has(Line(0.0, host, rank, "stdout", shown))
        if found == wanted:
            return start
    return 0


def lines_backward(fd: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines before a position, the last one first: where each begins, and its bytes
    without the line end. Raises OSError."""
    position, rest, at_the_end = end, b"", True
    while position > 0:
        size = min(BLOCK, position)
        position -= size
        data = os.pread(fd, size, position) + rest
        rest, *lines = data.split(b"\n")
        at = position + len(data)
        for line in reversed(lines):
            start = at - len(line)
            if line or not at_the_end:
                yield start, line
            at_the_end = False
            at = start - 1
        if len(rest) > MOST_WITHOUT_END:
            yield position, rest
            return
    if end > 0:
        yield 0, rest
