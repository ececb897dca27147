"""Tests of what a launcher's files of its ranks' output are read as."""

from __future__ import annotations

from pathlib import Path

import pytest

from dslaunch.node.streams import STDERR, STDOUT, Tail

PATTERNS = {"stdout": "*/{local_rank}/stdout.log", "stderr": "*/{local_rank}/stderr.log"}


def written(logs: Path, attempt: int, local_rank: int, text: bytes) -> Path:
    """A rank's standard output of one attempt, and its empty standard error."""
    directory = logs / f"attempt_{attempt}" / str(local_rank)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "stderr.log").touch()
    file = directory / "stdout.log"
    with file.open("ab") as opened:
        opened.write(text)
    return file


@pytest.fixture
def tail(tmp_path: Path) -> Tail:
    """The files of ranks 4 and 5, the first two of their node."""
    return Tail(str(tmp_path), dict(PATTERNS), range(4, 6))


def test_files_are_found_as_soon_as_they_come(tmp_path: Path, tail: Tail) -> None:
    assert list(tail.read(search=False)) == []
    written(tmp_path, 0, 0, b"zero\n")
    written(tmp_path, 0, 1, b"one\n")
    assert list(tail.read(search=False)) == [(4, STDOUT, b"zero\n"), (5, STDOUT, b"one\n")]


def test_only_what_is_new_is_read(tmp_path: Path, tail: Tail) -> None:
    file = written(tmp_path, 0, 0, b"first\n")
    list(tail.read())
    assert list(tail.read()) == []
    written(tmp_path, 0, 0, b"second\n")
    file.with_name("stderr.log").write_bytes(b"bad\n")
    assert list(tail.read()) == [(4, STDOUT, b"second\n"), (4, STDERR, b"bad\n")]


def test_a_rank_that_is_started_again_is_followed_into_its_new_file(
    tmp_path: Path, tail: Tail
) -> None:
    for attempt in range(2):
        text = b"attempt %d\n" % attempt
        written(tmp_path, attempt, 0, text)
        written(tmp_path, attempt, 1, b"")
        assert list(tail.read()) == [(4, STDOUT, text)]


def test_a_file_that_somebody_removes_takes_nothing_else_with_it(
    tmp_path: Path, tail: Tail
) -> None:
    file = written(tmp_path, 0, 0, b"")
    written(tmp_path, 0, 1, b"")
    list(tail.read())
    file.unlink()
    written(tmp_path, 0, 1, b"still here\n")
    assert list(tail.read(search=False)) == [(5, STDOUT, b"still here\n")]
