"""What the last recorded output of a run says about its training."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.json_text import json_text
from dslaunch.recorded import reader
from dslaunch.run.events import Line
from dslaunch.run.lines import last_state, printable
from dslaunch.run.progress import Progress, RunProgress
from dslaunch.run.recorded_output import Position, RecordedOutput
from dslaunch.run.run_directory import read_begin, write_private

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRESS = "progress.json"
"""The last progress of a detached run."""
LARGEST = 64 * 1024
"""Bytes that are read of it."""
WINDOW = 2048
"""Bytes that are read: they must be few, since lists show many runs."""
LINES = 5
"""Last lines of each rank that are read."""


def recorded_progress(directory: Path, formats: Sequence[str] = ()) -> Progress | None:
    """Return the progress by the last recorded output; None: it shows none.

    `formats`: `Cluster.progress`.
    """
    with RecordedOutput(directory) as record:
        written = _last_output(record)
        progress = RunProgress(formats)
        for log, data in written.items():
            source = record.source(log)
            if source is not None:
                _note_lines(progress, *source, data)
    return progress.latest_of_all()


def note_progress(directory: Path, progress: Progress) -> None:
    """Write the last progress of a detached run, whose output its nodes keep. Errors such as a full
    disk are ignored."""
    with contextlib.suppress(OSError):
        write_private(directory / PROGRESS, json_text(progress.as_data()) + "\n")


def noted_progress(directory: Path) -> Progress | None:
    """Return what `note_progress` has written; None: nothing, or it is damaged."""
    try:
        return reader(Progress)(read_begin(directory / PROGRESS, LARGEST))
    except (OSError, ValueError):
        return None


def _note_lines(progress: RunProgress, host: str, rank: int | None, data: bytes) -> None:
    """Read the last lines of a rank's output."""
    for line in data.split(b"\n")[-LINES - 1 :]:
        text = printable(last_state(line))
        if text:
            progress.note(Line(0.0, host, rank, "stdout", text))


def _last_output(record: RecordedOutput) -> dict[int, bytes]:
    """Return the last bytes of the logs that were written last."""
    found: dict[int, bytes] = {}
    left = WINDOW
    for piece in record.backward(Position(record.entries())):
        data = record.data(piece)[-WINDOW:]
        found[piece.log] = data + found.get(piece.log, b"")
        left -= len(data)
        if left <= 0:
            break
    return found
