"""The output of a run that was started before, as `logs` prints it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TextIO

from dslaunch.errors import DslaunchError
from dslaunch.json_text import json_text
from dslaunch.report.folding import WINDOW, FoldedLine, LineFolder
from dslaunch.report.json_lines import json_lines
from dslaunch.report.line_prefix import PrefixedLines, all_of
from dslaunch.report.output_stream import OutputStream, leave_if_unread
from dslaunch.run.events import Event, Line, LineBlock
from dslaunch.run.view import View


class LogView(View):
    """A view that prints lines on one stream, and no events.

    With `fold`, equal lines that several ranks wrote within WINDOW are one. Of recorded output only
    the times in the record say when that was, so lines wait by these.
    """

    def __init__(
        self,
        out: TextIO,
        *,
        timestamps: bool = False,
        color: bool = False,
        fold: bool = False,
        ranks: int = 0,
        hosts: Sequence[str] = (),
    ) -> None:
        """`ranks`: how many the run has; 0: not known. `hosts`: its nodes."""
        self.out = OutputStream(out)
        self.timestamps = timestamps
        self.lines = PrefixedLines(aligned=out.isatty(), color=color)
        self.lines.ranks, self.lines.nodes = ranks, len(hosts)
        self.folder = LineFolder() if fold else None
        if ranks:
            folded = [all_of(ranks, "rank")] if fold else []
            self.lines.make_room([*(f"{host}:{ranks - 1}" for host in hosts), *folded])
        self._now = 0.0
        """The time of the newest line, in seconds since the epoch."""
        self._arrived = False
        """Whether a line has arrived since the last tick."""
        self._lock = threading.RLock()
        self._closed = threading.Event()

    def line(self, line: Line) -> None:
        """Print a line; states of a progress bar that others replace are left out.

        Raises SystemExit if the reader of the output has exited, DslaunchError if it cannot be
        written, as on a full disk.
        """
        if line.partial:
            return
        with self._lock:
            if self.folder is None:
                self._write([(line, self.lines.text(line))])
            else:
                # a node whose clock is wrong must not hold back the lines of others
                self._now = max(self._now, min(line.time, time.time()))
                self._arrived = True
                self._show(self.folder.due(self._now))
                self.folder.add(line, self._now)
        check_written(self.out)

    def block(self, block: LineBlock) -> None:
        """Print lines of a rank that were written together; raises as `line`."""
        if self.folder is not None:
            super().block(block)
            return
        with self._lock:
            text = self.lines.block(block, before=self._when(block.time))
            self.out.write(text, colors=self.lines.color)
        check_written(self.out)

    def event(self, event: Event) -> None:
        """Do nothing: only output is printed."""

    def tick_in_background(self) -> None:
        """Show waiting lines also while no others arrive, until `close`."""
        if self.folder is not None:
            threading.Thread(target=self._tick, name="dslaunch-view", daemon=True).start()

    def tick(self) -> None:
        """Show all lines that wait, if none has arrived since the last tick."""
        with self._lock:
            if self.folder is not None and not self._arrived and not self._closed.is_set():
                self._show(self.folder.rest())
            self._arrived = False

    def close(self) -> None:
        """Show the lines that wait. Raises SystemExit and DslaunchError as `line`."""
        with self._lock:
            self._closed.set()
            if self.folder is not None:
                self._show(self.folder.rest())
        check_written(self.out)

    def _tick(self) -> None:
        while not self._closed.wait(WINDOW):
            self.tick()

    def _show(self, groups: Iterable[FoldedLine]) -> None:
        self._write([(group.line, self.lines.folded(group)) for group in groups])

    def _write(self, texts: list[tuple[Line, str]]) -> None:
        """Write lines at once."""
        if not texts:
            return
        shown = "".join(f"{self._when(line.time)}{text}\n" for line, text in texts)
        self.out.write(shown, colors=self.lines.color)

    def _when(self, time: float) -> str:
        return f"{utc(time)} " if self.timestamps else ""


class JsonLogView(View):
    """A view for programs: a JSON object per line of output, and no events."""

    def __init__(self, out: TextIO) -> None:
        self.out = OutputStream(out)

    def line(self, line: Line) -> None:
        """Print a line. Raises SystemExit and DslaunchError as `LogView.line`."""
        if not line.partial:
            self.out.write(json_text(line.as_data()) + "\n")
            check_written(self.out)

    def block(self, block: LineBlock) -> None:
        """Print lines of a rank that were written together; raises as `line`."""
        self.out.write(json_lines(block))
        check_written(self.out)

    def event(self, event: Event) -> None:
        """Do nothing: only output is printed."""

    def tick_in_background(self) -> None:
        """Do nothing: no line waits."""

    def close(self) -> None:
        """Do nothing: each line is complete."""


def check_written(out: OutputStream) -> None:
    """Raise SystemExit if the reader of a stream has exited, DslaunchError if it cannot be
    written."""
    leave_if_unread(out)
    if out.failure is not None:
        raise DslaunchError(f"standard output: {out.failure.strerror}")


def utc(when: float) -> str:
    """Return a time as `2026-01-31T14:00:00.123Z`."""
    text = datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
