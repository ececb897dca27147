"""A disk that is full for a moment costs the record what came then, and nothing else."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from tests.full_disk import files_of_at_most

from dslaunch.node import frames, private, run_files
from dslaunch.node.journal import FileJournal
from dslaunch.run.events import Event
from dslaunch.run.recorded_events import read_events
from dslaunch.run.recorded_output import RecordedOutput
from dslaunch.run.run_directory import (
    ARRIVAL,
    WORTH_A_WRITE,
    RunDirectory,
    write_private,
    write_private_pieces,
)

FILES_END = range(2 * ARRIVAL.size + 2)
"""Sizes at which files cannot grow: before, in and behind each thing that is written."""


def recorded(directory: Path) -> list[tuple[str, int | None, bytes]]:
    """Return the output as it is read: host, rank and data of each piece."""
    with RecordedOutput(directory) as record:
        pieces = [piece for piece in record.forward() if piece is not None]
        return [(*(record.source(piece.log) or ("", None)), record.data(piece)) for piece in pieces]


@pytest.mark.parametrize("size", FILES_END)
def test_what_is_recorded_later_is_read_as_it_was_written(tmp_path: Path, size: int) -> None:
    record = RunDirectory(tmp_path / "run")
    record.output("a", 0, b"before\n", 1.0, 1)
    with files_of_at_most(size):
        record.output("a", 0, b"at that moment\n", 2.0, 1)
        record.output("b", 1, b"first\n", 2.0, 1)
    record.output("a", 0, b"after\n", 3.0, 1)
    record.output("c", 2, b"other\n", 3.0, 1)
    record.let_go()
    found = recorded(tmp_path / "run")
    assert found[0] == ("a", 0, b"before\n")
    assert found[-2:] == [("a", 0, b"after\n"), ("c", 2, b"other\n")]
    assert set(found[1:-2]) <= {("a", 0, b"at that moment\n"), ("b", 1, b"first\n")}
    is_complete = len(found) == 5
    assert is_complete == (record.failure is None)


def test_a_whole_file_is_replaced_or_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_private(path, "before")
    with files_of_at_most(3), pytest.raises(OSError, match="space"):
        write_private(path, "after")
    assert path.read_text() == "before"


def test_the_first_pieces_of_a_file_do_not_stay_on_a_full_disk(tmp_path: Path) -> None:
    piece = "x" * WORTH_A_WRITE
    with files_of_at_most(WORTH_A_WRITE), pytest.raises(OSError, match=r"space|large"):
        write_private_pieces(tmp_path / "plan.json", [piece, piece])
    assert list(tmp_path.iterdir()) == []


STARTED, EXIT, ENDED = (
    Event(1.0, "started", "a"),
    Event(2.0, "exit", "a", 0),
    Event(3.0, "ended", "a"),
)


@pytest.mark.parametrize("size", [0, 3, 60])
def test_events_for_which_the_disk_has_no_space_are_recorded_later(
    tmp_path: Path, size: int
) -> None:
    record = RunDirectory(tmp_path / "run")
    with files_of_at_most(size):
        record.event(STARTED)
        record.event(EXIT)
    record.event(ENDED)
    record.let_go()
    assert tuple(read_events(tmp_path / "run")) == (STARTED, EXIT, ENDED)


def test_the_last_events_are_recorded_at_the_end_if_there_is_space_by_then(tmp_path: Path) -> None:
    record = RunDirectory(tmp_path / "run")
    with files_of_at_most(0):
        record.event(ENDED)
    record.let_go()
    assert tuple(read_events(tmp_path / "run")) == (ENDED,)


@pytest.mark.parametrize("retried", [False, True])
def test_events_of_a_node_wait_for_space(tmp_path: Path, retried: bool) -> None:
    events = run_files.EventFile(str(tmp_path))
    with files_of_at_most(3):
        events.add({"event": "exit"})
    if retried:
        events.retry()
    else:
        events.add({"event": "done"})
    recorded_events = (tmp_path / run_files.EVENTS).read_text().splitlines()
    assert recorded_events[0] == '{"event": "exit"}'
    assert len(recorded_events) == (1 if retried else 2)


def test_only_so_many_events_are_kept_for_a_full_disk(tmp_path: Path) -> None:
    written: list[bytes] = []
    is_full = True

    def append(data: bytes) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(data)

    appender = private.Appender(append)
    for _ in range(5):
        with pytest.raises(OSError, match="space"):
            appender.add(b"x" * private.MOST_KEPT)
    is_full = False
    appender.retry()
    assert written == [b"x" * 2 * private.MOST_KEPT]


@pytest.mark.parametrize("size", [0, 40, 60, 1000])
def test_messages_of_a_detached_run_reach_its_followers_though_the_disk_is_full(
    tmp_path: Path, size: int
) -> None:
    path = tmp_path / "journal"
    journal = FileJournal(str(path), 1 << 20)
    failed = {"event": "exit", "rank": 0, "code": 1}
    with files_of_at_most(size):
        journal.append(frames.OUTPUT, frames.output_body(0, 1, 1.0, b"x" * 50))
        journal.append(frames.MESSAGE, frames.message_body(failed))
        assert followed(journal)[-1] == failed
    journal.append(frames.OUTPUT, frames.output_body(0, 1, 2.0, b"after"))
    found = followed(journal)
    assert found[-2:] == [failed, b"after"]
    assert contents(path.read_bytes()) == found


def followed(journal: FileJournal) -> list[Any]:
    """Return what a follower gets, one frame at a time: messages, and the data of output."""
    sent, number = b"", 0
    while number < journal.last:
        data, number = journal.read(number, most=1)
        sent += data
    return contents(sent)


def contents(data: bytes) -> list[Any]:
    return [getattr(frame, "data", frame) for frame in frames.Decoder().feed(data)]
