"""The streams that a run's output is written to, and what happens when one fails."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TextIO

from dslaunch.terminal import colored, visible

ERASE = "\r\x1b[K"
"""Moves the cursor to the start of the terminal's line and clears it."""
UNREAD = 141
"""128 + SIGPIPE: the exit code that a shell reports when the reader of a pipe exits."""


class OutputStream:
    """A stream that may fail. A full disk loses output, but does not stop the run; a reader that
    exits stops it, as closing a terminal does.

    Control characters are escaped, because much of the text comes from nodes.
    """

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.failure: OSError | None = None
        self.tell: Callable[[str], None] = lambda why: None
        """Called once with the reason why output is no longer written."""

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self.file.isatty()

    def write(self, text: str, *, colors: bool = False) -> None:
        """Write and flush, unless the stream has failed; with `colors` keep the text's colors."""
        self._write(colored(text) if colors else visible(text))

    def write_above(self, last: str, text: str, *, colors: bool = False) -> None:
        """Write text in place of the terminal's last line, and `last` below it, at once: fast
        output would take three times as long in three writes."""
        shown = colored(text) if colors else visible(text)
        self._write(f"{ERASE}{shown}{visible(last)}")

    def is_terminal_of(self, other: OutputStream) -> bool:
        """Whether both are the same terminal."""
        if not (self.isatty() and other.isatty()):
            return False
        try:
            devices = {os.fstat(each.file.fileno()).st_rdev for each in (self, other)}
        except (OSError, ValueError):  # no file
            return self.file is other.file
        return len(devices) == 1

    def redraw(self, text: str) -> None:
        """Replace the terminal's last line, which has no line end, by this one."""
        self._write(f"{ERASE}{visible(text)}")

    def _write(self, text: str) -> None:
        if self.failure is not None:
            return
        try:
            self.file.write(text)
            self.file.flush()
        except OSError as failure:
            self.failure = failure
            if isinstance(failure, BrokenPipeError):
                hang_up()
            else:
                self.tell(f"standard output: {failure.strerror}; the run continues, see its logs")

    @property
    def unread(self) -> bool:
        """Whether the reader of the pipe has exited."""
        return isinstance(self.failure, BrokenPipeError)


def hang_up() -> None:
    """Stop the run, if one is active: SIGHUP has a handler only then."""
    if callable(signal.getsignal(signal.SIGHUP)):
        signal.raise_signal(signal.SIGHUP)


def leave_if_unread(*outlets: OutputStream) -> None:
    """Raise SystemExit with SIGPIPE's exit code if a reader has exited."""
    if any(outlet.unread for outlet in outlets):
        raise SystemExit(UNREAD)
