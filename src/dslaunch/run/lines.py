"""Split a stream of bytes into printable lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from dslaunch.terminal import COLOR, colored, end_colors, is_safe

LONGEST = 64 * 1024
"""Bytes of a line; a longer one is split, so that no rank can fill the memory."""
REDRAW = 1.0
"""Seconds between two states of a progress bar that redraws itself by carriage returns."""
_CONTROL = re.compile(
    rf"({COLOR.pattern})"  # the one kind that is kept
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # other control sequences
    r"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # operating system commands, such as the title
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


class Block(Struct, frozen=True):
    """Lines of one stream that are complete at the same time."""

    text: bytes
    """The lines, with a newline between them."""
    continues: bool = False
    """Whether the first line continues the last one of the block before: it is split, because it is
    too long."""


class BarState(Struct, frozen=True):
    """A state of a progress bar, which its program will redraw."""

    text: bytes


class Lines:
    """Splits one stream. Of a progress bar it yields a state per second, and the last one as a
    line."""

    __slots__ = ("_buffer", "_is_split", "_shown")

    def __init__(self) -> None:
        self._buffer = b""
        self._is_split = False
        """Whether the line in the buffer has begun in an earlier block."""
        self._shown = 0.0

    def feed(self, data: bytes, now: float) -> Iterator[Block | BarState]:
        """Add bytes; yield the lines that are complete. `now` is in seconds of any clock."""
        whole, newline, self._buffer = (self._buffer + data).rpartition(b"\n")
        if newline:
            yield self._block(_last_states(whole))
        if b"\r" in self._buffer:
            yield from self._redrawn(now)
        begun = max(len(self._buffer) - 1, 0) // LONGEST * LONGEST
        for at in range(0, begun, LONGEST):
            yield self._block(self._buffer[at : at + LONGEST])
            self._is_split = True
        self._buffer = self._buffer[begun:]

    def rest(self) -> Iterator[Block]:
        """Yield the rest without a newline at the end of the stream."""
        if self._buffer:
            yield self._block(last_state(self._buffer))
        self._buffer = b""

    def _redrawn(self, now: float) -> Iterator[BarState]:
        """Keep only the last state of a progress bar, and yield it if it is time to show it."""
        *states, rest = self._buffer.split(b"\r")
        state = _last_of(states)
        # if the program writes nothing more, this was its last state
        self._buffer = rest or (state + b"\r" if state else b"")
        if states[-1] and now - self._shown >= REDRAW:
            self._shown = now
            yield BarState(states[-1])

    def _block(self, text: bytes) -> Block:
        """Return lines of which the last one is complete."""
        continues, self._is_split = self._is_split, False
        return Block(text, continues)


def last_state(line: bytes) -> bytes:
    """Return the last state of a line that was redrawn by carriage returns."""
    return _last_of(line.split(b"\r")) if b"\r" in line else line


def _last_states(lines: bytes) -> bytes:
    """Return several lines, each in its last state."""
    if b"\r" not in lines:
        return lines
    # line ends of Windows, and of programs that write to a pseudo-terminal
    text = lines.replace(b"\r\n", b"\n").removesuffix(b"\r")
    return b"\n".join(map(last_state, text.split(b"\n"))) if b"\r" in text else text


def _last_of(states: list[bytes]) -> bytes:
    return next((state for state in reversed(states) if state), b"")


def printable(lines: bytes) -> str:
    """Return one or several lines that cannot harm a terminal.

    Of the control sequences, which programs that draw write by the thousand, only colors are kept.
    Other characters that could hide text are spelled out.
    """
    text = lines.decode(errors="replace")
    if is_safe(text):  # as almost all output is
        return end_colors(text)
    return "\n".join(map(_printable_line, text.split("\n")))


def _printable_line(text: str) -> str:
    return text if text.isprintable() else colored(_CONTROL.sub(_color, text))


def _color(control: re.Match[str]) -> str:
    """Return a control sequence if it is a color."""
    return control[1] or ""
