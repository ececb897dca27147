"""From bytes as they come to lines as people read them, with secrets left out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dslaunch.terminal import COLOR, PLAIN, visible

LONGEST = 64 * 1024
"""A longer line is given in pieces, so that no rank can fill the memory."""
REDRAW = 1.0
"""Seconds between two states shown of a progress bar that redraws itself by carriage returns."""
_CONTROL = re.compile(
    rf"{COLOR.pattern}"  # the one kind that is kept
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # other control sequences
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # operating system commands, such as the title
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
        pieces = max(len(self._buffer) - 1, 0) // LONGEST
        for piece in range(pieces):
            yield self._buffer[piece * LONGEST : (piece + 1) * LONGEST]
        self._buffer = self._buffer[pieces * LONGEST :]

    def rest(self) -> Iterator[bytes]:
        """What is left without a newline at the end of the stream."""
        if self._buffer:
            yield self._buffer
        self._buffer = b""


def _last_state(line: bytes) -> bytes:
    return next((state for state in reversed(line.split(b"\r")) if state), b"")


def printable(line: bytes) -> str:
    """Return a line that cannot harm a terminal.

    Of the control sequences, which programs that draw write by the thousand, only colors are kept.
    Other characters that could hide text are spelled out.
    """
    text = line.decode(errors="replace")
    parts = _CONTROL.split(text)
    plain = [visible(part) for part in parts]
    if len(plain) == 1:
        return plain[0]
    kept = [m[0] if COLOR.fullmatch(m[0]) else "" for m in _CONTROL.finditer(text)]
    shown = "".join(part + code for part, code in zip(plain, [*kept, ""], strict=True))
    return f"{shown}{PLAIN}" if any(kept) else shown
