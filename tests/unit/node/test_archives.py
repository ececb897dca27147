"""An archive that arrives in pieces, from nodes that may send anything."""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.node.files import Archive, InvalidPieceError

CONTENT = Random(1).randbytes(30_000)
SIZE = 4096


def pieces() -> list[bytes]:
    """Return a compressed archive with one file, in pieces."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as members:
        member = tarfile.TarInfo("lib/data.bin")
        member.size = len(CONTENT)
        members.addfile(member, io.BytesIO(CONTENT))
    data = packed.getvalue()
    return [data[start : start + SIZE] for start in range(0, len(data), SIZE)]


PIECES = pieces()


@contextlib.contextmanager
def announced(root: Path | str) -> Iterator[Archive]:
    archive = Archive(str(root), [hashlib.sha256(piece).hexdigest() for piece in PIECES])
    with contextlib.closing(archive):
        yield archive


def test_an_archive_is_unpacked_from_its_pieces(tmp_path: Path) -> None:
    with announced(tmp_path) as archive:
        for piece in PIECES:
            assert not archive.whole
            archive.add(piece)
        assert archive.whole
        assert archive.unpack() == 1
        assert (tmp_path / "lib/data.bin").read_bytes() == CONTENT


@given(st.lists(st.integers(0, len(PIECES) - 1) | st.binary(max_size=SIZE), max_size=40))
def test_nothing_is_kept_but_the_next_piece(sent: list[int | bytes]) -> None:
    with announced("unused") as archive:
        for each in sent:
            data = PIECES[each] if isinstance(each, int) else each
            before = archive.received
            try:
                archive.add(data)
            except InvalidPieceError:
                assert data not in PIECES[: before + 1]
                assert archive.received == before
        kept = [archive.piece(number) for number in range(archive.received)]
        assert kept == PIECES[: archive.received]


def test_pieces_that_come_twice_are_left_out(tmp_path: Path) -> None:
    with announced(tmp_path) as archive:
        for piece in PIECES[:3] + PIECES:
            archive.add(piece)
        archive.add(PIECES[0])
        assert archive.unpack() == 1


def test_a_piece_is_handed_on_when_it_has_arrived(tmp_path: Path) -> None:
    with announced(tmp_path) as archive:
        handed_on: list[bytes] = []

        def hand_on() -> None:
            handed_on.extend(archive.piece(number) for number in range(len(PIECES)))

        thread = threading.Thread(target=hand_on)
        thread.start()
        for piece in PIECES:
            archive.add(piece)
        archive.unpack()
        thread.join(300)
        assert handed_on == PIECES


def test_nobody_waits_for_a_piece_that_is_not_needed_any_more(tmp_path: Path) -> None:
    with announced(tmp_path) as archive:
        archive.add(PIECES[0])
        closing = threading.Timer(0, archive.close)
        closing.start()
        with pytest.raises(ConnectionAbortedError):
            archive.piece(1)
        closing.join()
