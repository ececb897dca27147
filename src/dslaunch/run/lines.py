"""Split a stream of bytes into printable lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from dslaunch.terminal import COLOR, PLAIN, visible

LONGEST = 64 * 1024
"""Bytes of a line; a longer one is split, so that no rank can fill the memory."""
REDRAW = 1.0
"""Seconds between two states of a progress bar that redraws itself by carriage returns."""
_CONTROL = re.compile(
    rf"{COLOR.pattern}"  # the one kind that is kept
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # other control sequences
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # operating system commands, such as the title
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


class BarState(Struct, frozen=True):
    """A state of a progress bar, which its program will redraw."""

    text: bytes


class Lines:
    """Splits one stream. Of a progress bar it yields a state per second, and the last one as a
    line."""

    __slots__ = ("_buffer", "_shown")

    def __init__(self) -> None:
        self._buffer = b""
        self._shown = 0.0

    def feed(self, data: bytes, now: float) -> Iterator[bytes | BarState]:
        """Add bytes; yield the lines that are complete. `now` is in seconds of any clock."""
        *whole, self._buffer = (self._buffer + data).split(b"\n")
        for line in whole:
            yield last_state(line)
        *states, rest = self._buffer.split(b"\r")
        if states:
            state = _last_of(states)
            # if the program writes nothing more, this was its last state
            self._buffer = rest or (state + b"\r" if state else b"")
            if states[-1] and now - self._shown >= REDRAW:
                self._shown = now
                yield BarState(states[-1])
        yield from self._pieces()

    def blocks(self, data: bytes, now: float) -> Iterator[bytes | BarState]:
        """Add bytes, as `feed` does, but yield lines that are complete at the same time in one
        piece, without its last newline."""
        if b"\r" in data or b"\r" in self._buffer:
            yield from self.feed(data, now)
            return
        whole, newline, rest = data.rpartition(b"\n")
        if newline:
            yield self._buffer + whole
            self._buffer = rest
        else:
            self._buffer += rest
        yield from self._pieces()

    def _pieces(self) -> Iterator[bytes]:
        """Yield the pieces of a line that is too long to be kept until it ends."""
        pieces = max(len(self._buffer) - 1, 0) // LONGEST
        for piece in range(pieces):
            yield self._buffer[piece * LONGEST : (piece + 1) * LONGEST]
        self._buffer = self._buffer[pieces * LONGEST :]

    def rest(self) -> Iterator[bytes]:
        """Yield the rest without a newline at the end of the stream."""
        if self._buffer:
            yield last_state(self._buffer)
        self._buffer = b""


def last_state(line: bytes) -> bytes:
    """Return the last state of a line that was redrawn by carriage returns."""
    return _last_of(line.split(b"\r")) if b"\r" in line else line


def _last_of(states: list[bytes]) -> bytes:
    return next((state for state in reversed(states) if state), b"")


def printable_block(lines: bytes) -> str:
    """Return several lines, each as `printable` returns it."""
    text = lines.decode(errors="replace")
    if text.replace("\n", "").isprintable():  # as almost all output is
        return text
    return "\n".join(map(printable, lines.split(b"\n")))


def printable(line: bytes) -> str:
    """Return a line that cannot harm a terminal.

    Of the control sequences, which programs that draw write by the thousand, only colors are kept.
    Other characters that could hide text are spelled out.
    """
    text = line.decode(errors="replace")
    if text.isprintable():  # as most lines are
        return text
    parts = _CONTROL.split(text)
    plain = [visible(part) for part in parts]
    if len(plain) == 1:
        return plain[0]
    kept = [m[0] if COLOR.fullmatch(m[0]) else "" for m in _CONTROL.finditer(text)]
    shown = "".join(part + code for part, code in zip(plain, [*kept, ""], strict=True))
    return f"{shown}{PLAIN}" if any(kept) else shown
