"""Read the events that this machine has recorded of a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from dslaunch.recorded import reader
from dslaunch.run.events import Event
from dslaunch.run.json_lines import SkippedLines
from dslaunch.run.run_directory import EVENTS, open_recorded

LONGEST = 1 << 20
"""Bytes of one event; a longer line is damaged."""
AT_ONCE = 10_000
"""Lines that are validated together, which takes half the time: a run of many nodes has hundreds of
thousands."""


class RecordedEvents:
    """The events of a run directory, also while it is being written."""

    def __init__(self, directory: Path, skipped: SkippedLines | None = None) -> None:
        """`skipped` counts the damaged lines."""
        self._path = directory / EVENTS
        self._skipped = skipped or SkippedLines()
        self._position = 0

    def read(self) -> list[Event]:
        """Return the events that are new since the last call; damaged ones are left out.

        A last line without its end is read by a later call: it may be incomplete.
        """
        try:
            with open_recorded(self._path) as file:
                file.seek(self._position)
                text = file.read()
        except OSError:
            return []
        whole, end, _ = text.rpartition(b"\n")
        self._position += len(whole) + len(end)
        return _events_in(whole, self._skipped)


def read_events(directory: Path, skipped: SkippedLines | None = None) -> list[Event]:
    """Return all recorded events of a run, in the order of arrival.

    `skipped` counts the damaged lines.
    """
    return RecordedEvents(directory, skipped).read()


def read_last_attempt(directory: Path) -> list[Event]:
    """Return the recorded events of a run since its last restart, in the order of arrival."""
    try:
        with open_recorded(directory / EVENTS) as file:
            text = file.read()
    except OSError:
        return []
    whole, _, _ = text.rpartition(b"\n")
    return _events_in(whole[_last_restart(whole) :], SkippedLines())


def _last_restart(text: bytes) -> int:
    """Return where the line of the last restart begins; 0: there was none.

    Only lines that name it are parsed: a run of many nodes has hundreds of thousands of events.
    """
    end = len(text)
    while (found := text.rfind(_RESTARTING, 0, end)) >= 0:
        start = text.rfind(b"\n", 0, found) + 1
        line, _, _ = text[start : start + LONGEST].partition(b"\n")
        event = _event(line)
        if event is not None and event.kind == "restarting":
            return start
        end = start
    return 0


_RESTARTING = b'"restarting"'


def _events_in(text: bytes, skipped: SkippedLines) -> list[Event]:
    lines = [line for line in text.split(b"\n") if line]
    found: list[Event] = []
    for start in range(0, len(lines), AT_ONCE):
        several = lines[start : start + AT_ONCE]
        events = _valid_events(several)
        if events is None:
            events = [event for line in several if (event := _event(line)) is not None]
            skipped.count += len(several) - len(events)
        found += events
    return found


def _valid_events(lines: list[bytes]) -> list[Event] | None:
    """Return the events of lines; None: some are damaged."""
    if max(map(len, lines)) > LONGEST:
        return None
    try:
        found = _several_events()(b"[%b]" % b",".join(lines))
    except ValueError:
        return None
    return found if len(found) == len(lines) else None


@cache
def _one_event() -> Callable[[bytes], Event]:
    return reader(Event)


@cache
def _several_events() -> Callable[[bytes], list[Event]]:
    return reader(list[Event])


def _event(line: bytes) -> Event | None:
    if len(line) > LONGEST:
        return None
    try:
        return _one_event()(line)
    except ValueError:
        return None
