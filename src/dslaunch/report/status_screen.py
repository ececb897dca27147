"""Two output streams with a status line below them, if standard error is a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from dslaunch.report.output_stream import OutputStream, leave_if_unread
from dslaunch.report.status_line import RunStatusLine
from dslaunch.terminal import one_line

TICK = 0.1
"""Seconds between two looks at what waits to be shown."""
REDRAW = 1.0
"""Seconds between two states of the status line while nothing happens."""
_FREE_COLUMNS = 3
"""Columns that the status line leaves free for the terminal's `^C`."""
_MANY_NODES = 64
_PAUSE_FOR_A_NODE = 1e-4
"""Seconds between two states of the status line, for each of many nodes."""


class StatusScreen:
    """Writes lines above the status line, and decides when that is made again.

    Its caller lets one thread at a time use it.
    """

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        status: RunStatusLine,
        *,
        live: bool,
        width: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        """`live`: whether the status line is shown. `width`: how many columns the terminal has now.
        `clock`: the seconds of the status line."""
        self.out = OutputStream(out)
        self.err = OutputStream(err)
        self.out.tell = lambda why: self.write(self.err, f"dslaunch: {why}\n")
        self.status = status
        self.live = live
        self.width = width
        self.clock = clock
        self._one_terminal = self.out.is_terminal_of(self.err)
        """Whether the output and the status line are on the same terminal."""
        self._status_text = ""
        self._redrawn_at = 0.0
        """When the status line was made, by `clock`."""
        self._outdated = False
        """Whether something has happened since that it does not show."""

    def stream(self, name: str) -> OutputStream:
        """Return the stream for a rank's `stdout` or `stderr`."""
        return self.out if name == "stdout" else self.err

    def write(self, target: OutputStream, text: str, *, colors: bool = False) -> None:
        """Write lines, above the status line if there is one."""
        if not self.live:
            target.write(text, colors=colors)
            return
        self._update()
        if target is self.err or self._one_terminal:
            target.write_above(self._status_text, text, colors=colors)
        else:
            self.err.redraw("")
            target.write(text, colors=colors)
            self.err.redraw(self._status_text)

    def close(self) -> None:
        """Remove the status line for good."""
        if self.live:
            self.err.redraw("")
        self.live = False

    def leave_if_unread(self) -> None:
        """Raise SystemExit with SIGPIPE's exit code if a reader has exited."""
        leave_if_unread(self.out, self.err)

    def redraw(self) -> None:
        """Make the text of the status line and show it."""
        self._redrawn_at = self.clock()
        self._outdated = False
        if self.live:
            self._make_status()
            self.err.redraw(self._status_text)

    def redraw_soon(self) -> None:
        """Show the status line, of many nodes only once in a while: each of them has events, and to
        make its text takes time in proportion to the nodes."""
        if len(self.status.hosts) <= _MANY_NODES or self._is_due(self.status.now):
            self.redraw()
        else:
            self._outdated = True

    def redraw_if_due(self, now: float) -> None:
        """Show the time, and what has happened since the status line was made."""
        is_idle = now - self.status.now >= REDRAW
        if is_idle or (self._outdated and self._is_due(now)):
            self.status.now = now
            self.redraw()

    def _is_due(self, now: float) -> bool:
        """Return whether the status line was made long enough ago to make it again."""
        pause = max(TICK, len(self.status.hosts) * _PAUSE_FOR_A_NODE)
        return now - self._redrawn_at >= pause

    def _update(self) -> None:
        """Make the text of the status line, at most once in REDRAW seconds: output may be fast."""
        now = self.clock()
        if now - self.status.now >= REDRAW:
            self.status.now = now
            self._make_status()

    def _make_status(self) -> None:
        columns = max(0, self.width() - _FREE_COLUMNS)
        self._status_text = one_line(self.status.text(columns))
