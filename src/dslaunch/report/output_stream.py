"""Where a run's words go, and what becomes of the run when they can go there no longer."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TextIO

from dslaunch.terminal import colored, visible

ERASE = "\r\x1b[K"
"""Moves to the beginning of the terminal's line and clears it."""
UNREAD = 141
"""128 + SIGPIPE: how a shell tells of a program whose reader went away."""


class OutputStream:
    """A stream that may fail. A full disk costs what is written there, never the run; a reader that
    goes away ends the run, as a terminal does that is closed.

    Control characters in what is written are spelled out: nodes chose much of it.
    """

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.failure: OSError | None = None
        self.tell: Callable[[str], None] = lambda why: None
        """Told once why nothing more is written."""

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self.file.isatty()

    def write(self, text: str, *, colors: bool = False) -> None:
        """Write at once, unless it has failed before; with `colors` the text's own are kept."""
        self._write(colored(text) if colors else visible(text))

    def redraw(self, text: str) -> None:
        """Replace the terminal's last line, which is not ended, by this one."""
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
                self.tell(f"standard output: {failure.strerror}; the run goes on, see its logs")

    @property
    def unread(self) -> bool:
        """Whether its reader went away."""
        return isinstance(self.failure, BrokenPipeError)


def hang_up() -> None:
    """Wish the end of the run, if one goes on: SIGHUP is handled then, and only then."""
    if callable(signal.getsignal(signal.SIGHUP)):
        signal.raise_signal(signal.SIGHUP)


def leave_if_unread(*outlets: OutputStream) -> None:
    """Raise SystemExit as for a program that SIGPIPE ended, if nobody reads any more."""
    if any(outlet.unread for outlet in outlets):
        raise SystemExit(UNREAD)
