"""Copying a checkpoint's files between places."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dslaunch.errors import ErrorCode, PreflightError
from dslaunch.plural import byte_count
from dslaunch.run.checkpoint_stores import LocalStore, StoreError
from dslaunch.run.shards import Transfer, copy
from dslaunch.transport.future import Future


@pytest.fixture
def place() -> Iterator[LocalStore]:
    with ThreadPoolExecutor(4) as pool:
        yield LocalStore(pool)


def transfers(source: Path, target: Path, place: Any, onto: Any = None) -> list[Transfer]:
    found = []
    for path in sorted(source.iterdir()):
        about = path.stat()
        found.append(
            Transfer(
                source=place,
                source_directory=str(source),
                target=onto or place,
                target_directory=str(target),
                path=path.name,
                size=about.st_size,
                mtime=about.st_mtime_ns,
                mode=about.st_mode & 0o777,
            )
        )
    return found


copy_in_pieces = partial(copy, piece=1000)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    for number in range(5):
        (directory / f"f{number}").write_bytes(os.urandom(1500 * number))
    return directory


def test_all_files_arrive_with_their_times(source: Path, tmp_path: Path, place: LocalStore) -> None:
    progress = copy_in_pieces(transfers(source, tmp_path / "t", place))
    assert (progress.files_done, progress.done, progress.there) == (5, 15_000, 0)
    for path in source.iterdir():
        arrived = tmp_path / "t" / path.name
        assert arrived.read_bytes() == path.read_bytes()
        assert arrived.stat().st_mtime_ns == path.stat().st_mtime_ns
    assert copy_in_pieces(transfers(source, tmp_path / "t", place)).there == 5


class Failing(LocalStore):
    """A place whose disk fails after some pieces."""

    def __init__(self, pool: ThreadPoolExecutor, pieces: int) -> None:
        super().__init__(pool)
        self.pieces = pieces

    def ask(self, operation: str, path: str, **more: Any) -> Future[Any]:
        if operation == "write":
            self.pieces -= 1
            if self.pieces < 0:
                broken: Future[Any] = Future()
                broken.set_exception(StoreError(f"{path}: input/output error"))
                return broken
        return super().ask(operation, path, **more)


def test_a_second_try_continues_where_the_first_one_failed(
    source: Path, tmp_path: Path, place: LocalStore
) -> None:
    with (
        ThreadPoolExecutor(2) as pool,
        pytest.raises(StoreError, match="input/output error"),
    ):
        copy_in_pieces(transfers(source, tmp_path / "t", place, Failing(pool, 8)))
    progress = copy_in_pieces(transfers(source, tmp_path / "t", place))
    assert progress.resumed + progress.there > 0
    assert {p.name: p.read_bytes() for p in (tmp_path / "t").iterdir()} == {
        p.name: p.read_bytes() for p in source.iterdir()
    }


def test_a_file_that_changes_during_the_copy_is_not_mixed(
    source: Path, tmp_path: Path, place: LocalStore
) -> None:
    wanted = transfers(source, tmp_path / "t", place)
    (source / "f4").write_bytes(bytes(6000))
    with pytest.raises(StoreError, match="f4 changed"):
        copy_in_pieces(wanted)
    assert not (tmp_path / "t" / "f4").exists()


def test_a_full_disk_is_reported_before_the_copy(
    source: Path, tmp_path: Path, place: LocalStore
) -> None:
    with pytest.raises(PreflightError, match=r"15\.0 kB") as caught:
        copy_in_pieces(transfers(source, tmp_path / "t", place), spare=1 << 62)
    assert caught.value.error_code is ErrorCode.DISK_FULL
    assert list((tmp_path / "t").iterdir()) == []


def test_sizes_are_shown_with_units() -> None:
    assert [byte_count(n) for n in (0, 999, 1000, 123_456_789, 10**18)] == [
        "0 B", "999 B", "1.0 kB", "123.5 MB", "1000.0 PB",
    ]  # fmt: skip
