"""From bytes as they come to lines as people read them, with secrets left out."""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST = 64 * 1024
"""A longer line is given in pieces, so that no rank can fill the memory."""
REDRAW = 1.0
"""Seconds between two states shown of a progress bar that redraws itself by carriage returns."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL = re.compile(
    r"\x1b\[[0-9;]*m"  # colours, the one kind that is kept
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # other control sequences
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # operating system commands, such as the title
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


class Lines:
    """Splits one stream. A bar that redraws itself is shown now and then, and its last state."""

    def __init__(self) -> None:
        self._buffer = b""
        self._shown = 0.0

    def feed(self, data: bytes, now: float) -> Iterator[bytes]:
        """Add bytes; give the lines that are whole now. `now` is in seconds of any clock."""
        *whole, self._buffer = (self._buffer + data).split(b"\n")
        for line in whole:
            yield _last_state(line)
        *states, rest = self._buffer.split(b"\r")
        if states:
            self._buffer = rest
            if states[-1] and now - self._shown >= REDRAW:
                self._shown = now
                yield states[-1]
        while len(self._buffer) > LONGEST:
            yield self._buffer[:LONGEST]
            self._buffer = self._buffer[LONGEST:]

    def rest(self) -> Iterator[bytes]:
        """What is left without a newline at the end of the stream."""
        if self._buffer:
            yield self._buffer
        self._buffer = b""


def _last_state(line: bytes) -> bytes:
    return next((state for state in reversed(line.split(b"\r")) if state), b"")


def printable(line: bytes) -> str:
    """A line that cannot harm a terminal: of all control sequences only colours are left."""
    text = line.decode(errors="replace")
    if not _CONTROL.search(text):
        return text
    kept = _CONTROL.sub(lambda m: m[0] if _COLOUR.fullmatch(m[0]) else "", text)
    return f"{kept}\x1b[0m" if _COLOUR.search(kept) else kept


def without_colour(text: str) -> str:
    """The text less its colours."""
    return _COLOUR.sub("", text)
