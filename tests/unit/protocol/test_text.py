"""Lines of nodes: found in any pieces, in linear time, and bounded."""

from __future__ import annotations

import json
import time

import pytest

from dslaunch.protocol.text import MOST_LINE, MOST_NOISE, NOISE_KEPT, MarkedLines, json_value
from dslaunch.protocol.values import Address, InvalidAnswer, adapter_of, parse

MARK = b"\x02mark "
SENT = b"Welcome\n" + MARK + b"one\nmore noise" + MARK + b"two\n" + MARK + b"\n\x02mark"


def lines(pieces: list[bytes]) -> tuple[list[bytes], MarkedLines]:
    found, reader = [], MarkedLines(MARK)
    for piece in pieces:
        reader.add(piece)
        while (line := reader.next()) is not None:
            found.append(line)
    return found, reader


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_lines_are_the_same_in_pieces_of_any_size(size: int) -> None:
    found, reader = lines([SENT[at : at + size] for at in range(0, len(SENT), size)])
    assert found == [b"one", b"two", b""]
    assert reader.noise == b"Welcome\nmore noise"
    assert reader.unread() == "Welcome\nmore noise\x02mark"


def cost(size: int, before: bytes) -> float:
    reader = MarkedLines(MARK)
    reader.add(before)
    began = time.process_time()
    for _ in range(size // 64):
        reader.add(b"x" * 64)
        assert reader.next() is None
    return time.process_time() - began


@pytest.mark.parametrize("before", [b"", MARK], ids=["noise", "one line"])
def test_time_grows_as_the_bytes_that_are_read(before: bytes) -> None:
    cost(1 << 20, before)
    little = min(cost(1 << 20, before) for _ in range(3))
    much = min(cost(4 << 20, before) for _ in range(3))
    assert much < 10 * little


def test_noise_without_an_end_is_cut_off_and_its_beginning_kept() -> None:
    reader = MarkedLines(MARK)
    with pytest.raises(InvalidAnswer, match="no answers"):
        for _ in range(2 * MOST_NOISE // 65536):
            reader.add(b"x" * 65536)
            assert reader.next() is None
    assert len(reader.noise) == NOISE_KEPT


def test_a_line_without_an_end_is_cut_off() -> None:
    reader = MarkedLines(MARK)
    reader.add(MARK)
    with pytest.raises(InvalidAnswer, match="a line of more than"):
        for _ in range(2 * MOST_LINE // 65536):
            reader.add(b"x" * 65536)
            assert reader.next() is None


def test_many_lines_that_are_each_small_enough_are_cut_off() -> None:
    reader = MarkedLines(MARK)
    with pytest.raises(InvalidAnswer, match="of answers"):
        for _ in range(100):
            reader.add(MARK + b"x" * (1 << 20) + b"\n")
            reader.next()


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"\xff\xfe", b"[" * 200_000, b"9" * 5000, b"{}{}", b'{"a": }'),
        *(b"[" + b"{}," * 600_000 + b"{}]", b'"' + b"x" * (MOST_LINE + 1) + b'"'),
    ],
    ids=repr,
)
def test_what_is_no_json_or_too_large_is_invalid(text: bytes) -> None:
    with pytest.raises(InvalidAnswer):
        json_value(text)


def test_names_of_files_that_are_no_text_become_printable() -> None:
    assert json_value(rb'{"\udc80": "a\uDCFFb"}') == {"\ufffd": "a\ufffdb"}
    assert json_value(json.dumps("é").encode()) == "é"


@pytest.mark.parametrize("zone", ["\x1b[31m", "a b", "a\nb", "a/b", "x" * 16])
def test_an_address_has_no_zone_that_is_no_interface(zone: str) -> None:
    parse(adapter_of(Address), "fe80::1%eth0")
    with pytest.raises(InvalidAnswer):
        parse(adapter_of(Address), f"fe80::1%{zone}")
