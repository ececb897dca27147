"""Show the output of a run that this machine has recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.node import frames
from dslaunch.run.interrupts import Until, never
from dslaunch.run.log_selection import EVERY_LINE, LogSelection, SelectedLines
from dslaunch.run.recorded_events import RecordedEvents
from dslaunch.run.recorded_output import Piece, Position, RecordedOutput, by_time
from dslaunch.run.run_directory import is_held
from dslaunch.run.watch import Watch

if TYPE_CHECKING:
    from dslaunch.run.events import Event
    from dslaunch.run.view import View

FIRST_WINDOW = 64 * 1024
"""Bytes that are read first in search of the last lines."""
GROWTH = 4
"""How many times as much is read if they were not enough."""
Stream = tuple[int, int]
"""A log, and which of its streams."""


def replay(
    directory: Path,
    view: View,
    selection: LogSelection = EVERY_LINE,
    *,
    follow: bool,
    until: Until = never,
) -> None:
    """Show what this machine has recorded, in the order of time; with `follow` in the order of
    arrival, while the launcher is running. Stop early when `until` returns True.

    With `tail` alone, only the end of the record is read.
    """
    with RecordedOutput(directory) as record:
        shown = _Replay(record, SelectedLines(view, selection), until)
        begin = Position()
        if selection.tail is not None and selection.since is None:
            begin = record.end()
            shown.last_lines(begin)
        if follow:
            newer = record.forward(begin, lambda: is_held(directory) and not until())
            shown.show(shown.selected(newer))
        elif begin == Position():
            shown.show(by_time(filter(None, shown.selected(record.forward()))))
        shown.watch.flush_all()
        shown.chosen.release()


MOMENTARY = frozenset(("away", "back", "noticed", "resent"))
"""Events that mean nothing later."""


def attach_record(
    directory: Path, view: View, selection: LogSelection = EVERY_LINE, *, until: Until = never
) -> None:
    """Show the events so far and the selected output, and all that comes, until the launcher that
    records there has ended or `until` returns True."""
    events = RecordedEvents(directory)
    with RecordedOutput(directory) as record:
        shown = _Replay(record, SelectedLines(view, selection), until)
        begin = Position()
        if selection.tail is not None:
            begin = record.end()
            shown.last_lines(begin)
        _show_events(view, (event for event in events.read() if event.kind not in MOMENTARY))
        shown.chosen.release()
        newer = record.forward(begin, lambda: is_held(directory) and not until())
        arrived: list[Event] = []
        for piece in shown.selected(newer):
            shown.show([piece])
            if piece is None:
                # what ranks wrote before these events has been shown by now
                _show_events(view, arrived)
                arrived = events.read()
        shown.watch.flush_all()
        _show_events(view, [*arrived, *events.read()])


def _show_events(view: View, events: Iterable[Event]) -> None:
    for event in events:
        view.event(event)


class _Replay:
    """A record that is being shown."""

    def __init__(self, record: RecordedOutput, chosen: SelectedLines, until: Until) -> None:
        self.record, self.chosen, self.until = record, chosen, until
        self.watch = Watch(chosen)

    def selected(self, pieces: Iterable[Piece | None]) -> Iterator[Piece | None]:
        """Yield the pieces that may have selected lines, and every None.

        A line has the time of its last piece, so the last older piece of a stream is yielded too.
        """
        since = self.chosen.selection.since
        older: dict[Stream, Piece] = {}
        for piece in pieces:
            if piece is None:
                yield None
            elif self._has(piece):
                stream = (piece.log, piece.stream)
                if since is not None and piece.time < since:
                    older[stream] = piece
                    continue
                before = older.pop(stream, None)
                if before is not None:
                    yield before
                yield piece

    def _has(self, piece: Piece) -> bool:
        source = self.record.source(piece.log)
        if source is None or not self.chosen.selection.has_source(*source):
            return False
        until = self.chosen.selection.until
        return until is None or piece.time <= until

    def last_lines(self, end: Position) -> None:
        """Keep the last selected lines before a position. What is read grows until it has them."""
        size = FIRST_WINDOW
        while not self.chosen.full and not self.until():
            pieces, whole = self._last_pieces(end, size)
            self.chosen.forget()
            self.watch = Watch(self.chosen)
            self.show(pieces, torn=not whole)
            if whole:
                return
            size *= GROWTH

    def _last_pieces(self, end: Position, size: int) -> tuple[list[Piece], bool]:
        """Return the last pieces with about `size` bytes by time, and whether there are no others
        before them."""
        found: list[Piece] = []
        for piece in self.record.backward(end):
            if not self._has(piece):
                continue
            if size <= 0:
                return by_time(reversed(found)), False
            found.append(piece)
            size -= piece.size
        return by_time(reversed(found)), True

    def show(self, pieces: Iterable[Piece | None], *, torn: bool = False) -> None:
        """Show the lines of these pieces. `torn`: they may begin within a line, which is left
        out."""
        begun: set[Stream] = set()
        for piece in pieces:
            if self.until():
                return
            if piece is None:  # all that was recorded so far has been read
                self.chosen.release()
                continue
            data = self.record.data(piece)
            if torn and (piece.log, piece.stream) not in begun:
                _, end, data = data.partition(b"\n")
                if not end:
                    continue
                begun.add((piece.log, piece.stream))
            self._output(piece, data)

    def _output(self, piece: Piece, data: bytes) -> None:
        source = self.record.source(piece.log)
        if source is None:
            return
        host, rank = source
        number = frames.NO_RANK if rank is None else rank
        self.watch.output(host, frames.Output(number, piece.stream, piece.time, data), 0.0)
