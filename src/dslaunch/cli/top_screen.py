"""The terminal of `top`: draws pages on the alternate screen, and reads keys."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from dslaunch.report.usage_table import SORTS, Choice, Size

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The alternate screen without a cursor, and back (xterm control sequences)."""
_HOME, _TO_END_OF_LINE, _TO_END = "\x1b[H", "\x1b[K", "\x1b[J"
KEYS = "q quit   s sort   / filter"
POLL = 0.2
"""Seconds between two looks at the size of the terminal."""
_ENTERED, _BACKSPACE, _ESCAPE = "\r\n", "\x7f\x08", "\x1b"


class Screen:
    """A terminal, and what its user has chosen to see."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.quit = False
        self._typing: str | None = None
        """The filter that is being typed; None: none is."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Use the whole terminal, and restore it at the end."""
        keys = sys.stdin.fileno()
        before = termios.tcgetattr(keys)
        sys.stdout.write(_ENTER)
        try:
            tty.setcbreak(keys)
            yield
        finally:
            termios.tcsetattr(keys, termios.TCSADRAIN, before)
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()

    def show(self, page: Callable[[Choice, Size], list[str]], seconds: float) -> None:
        """Show a page for `seconds`; draw it again when a key or the size changes it."""
        deadline = time.monotonic() + seconds
        drawn: tuple[object, ...] = ()
        while not self.quit:
            size = self._size()
            state = (size, self.choice, self._typing)
            if state != drawn:
                self._draw(page(self.choice, size), size)
                drawn = state
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._read_keys(min(left, POLL))

    def _size(self) -> Size:
        try:
            size = os.get_terminal_size(sys.stdout.fileno())
        except OSError:  # the terminal is gone
            return Size(80, 23)
        return Size(size.columns or 80, (size.lines or 24) - 1)

    def _draw(self, lines: list[str], size: Size) -> None:
        assert size.width is not None
        assert size.height is not None
        shown = [line[: size.width] for line in lines[: size.height]]
        shown += [""] * (size.height - len(shown))
        text = "".join(f"{line}{_TO_END_OF_LINE}\r\n" for line in [*shown])
        sys.stdout.write(f"{_HOME}{text}{self._status()[: size.width - 1]}{_TO_END}")
        sys.stdout.flush()

    def _status(self) -> str:
        if self._typing is not None:
            return f"filter: {self._typing}"
        words = f" {self.choice.words!r}" if self.choice.words else ""
        return f"{KEYS}{words}   sorted by {self.choice.sort}"

    def _read_keys(self, seconds: float) -> None:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        if not ready:
            return
        data = os.read(sys.stdin.fileno(), 64)
        if not data:  # the terminal was closed
            self.quit = True
        for key in data.decode(errors="replace"):
            self.press(key)

    def press(self, key: str) -> None:
        """Do what a key means."""
        if self._typing is not None:
            self._type(key)
        elif key == "q":
            self.quit = True
        elif key == "s":
            following = SORTS[(SORTS.index(self.choice.sort) + 1) % len(SORTS)]
            self.choice = replace(self.choice, sort=following)
        elif key == "/":
            self._typing = ""

    def _type(self, key: str) -> None:
        assert self._typing is not None
        if key in _ENTERED:
            self.choice, self._typing = replace(self.choice, words=self._typing), None
        elif key == _ESCAPE:
            self._typing = None
        elif key in _BACKSPACE:
            self._typing = self._typing[:-1]
        elif key.isprintable():
            self._typing += key
