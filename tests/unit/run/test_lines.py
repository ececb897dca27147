from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.run.lines import LONGEST, BarState, Lines, printable, printable_block
from dslaunch.terminal import without_color


def split(*pieces: bytes, now: float = 0.0) -> list[bytes]:
    lines = Lines()
    found = [line for piece in pieces for line in lines.feed(piece, now)]
    return [*(line for line in found if isinstance(line, bytes)), *lines.rest()]


@given(
    st.lists(st.binary().map(lambda b: b.replace(b"\r", b"").replace(b"\n", b"")), min_size=1),
    st.lists(st.integers(0, 200)),
)
def test_lines_do_not_depend_on_how_the_bytes_were_cut(lines: list[bytes], cuts: list[int]) -> None:
    text = b"".join(line + b"\n" for line in lines)
    at = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[a:b] for a, b in pairwise(at)]
    assert split(*pieces) == lines


@given(
    st.lists(st.text(alphabet="a\r\n\x1b[m\xe9\u202e").map(str.encode), min_size=1),
    st.integers(1, 9),
)
def test_lines_that_come_in_blocks_are_those_that_come_one_by_one(
    pieces: list[bytes], cut: int
) -> None:
    one_by_one, in_blocks = Lines(), Lines()
    text = b"".join(pieces)
    for at in range(0, len(text), cut):
        single = list(one_by_one.feed(text[at : at + cut], 0))
        several = list(in_blocks.blocks(text[at : at + cut], 0))
        lines = [printable(line) for line in single if isinstance(line, bytes)]
        blocks = [printable_block(block) for block in several if isinstance(block, bytes)]
        assert [line for block in blocks for line in block.split("\n")] == lines
        bars = [bar for bar in single if isinstance(bar, BarState)]
        assert bars == [bar for bar in several if isinstance(bar, BarState)]
    assert list(one_by_one.rest()) == list(in_blocks.rest())


def test_a_line_without_a_newline_is_given_at_the_end() -> None:
    assert split(b"no newline") == [b"no newline"]


def test_a_progress_bar_is_shown_in_its_last_state() -> None:
    assert split(b"\r 10%\r 50%\r100%\n", now=0.5) == [b"100%"]


def test_a_progress_bar_without_newlines_is_shown_now_and_then() -> None:
    lines = Lines()
    shown = [
        line for second in range(10) for line in lines.feed(b"\r%d%%" % second, 100 + second / 2)
    ]
    assert shown == [BarState(b"%d%%" % state) for state in (0, 2, 4, 6, 8)]


@pytest.mark.parametrize("end", [b"\r", b"\n", b"\r\n", b""])
def test_the_last_state_of_a_progress_bar_is_a_line_however_it_ends(end: bytes) -> None:
    assert split(b"\r 10%", b"\r100%" + end) == [b"100%"]


def test_a_windows_line_end_that_arrives_in_two_pieces_is_one_line() -> None:
    assert split(b"text\r", b"\nmore\n") == [b"text", b"more"]


def test_a_line_that_never_ends_is_given_in_pieces() -> None:
    lines = Lines()
    given_ = list(lines.feed(b"x" * (3 * LONGEST + 1), 0))
    assert [len(line) for line in given_ if isinstance(line, bytes)] == [LONGEST] * 3


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        pytest.param(b"plain \xc3\xa9", "plain é", id="unicode"),
        pytest.param(b"bad \xff", "bad \ufffd", id="invalid UTF-8"),
        pytest.param(b"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m\x1b[0m", id="color, closed"),
        pytest.param(b"\x1b[2J\x1b[Hgone", "gone", id="clear screen"),
        pytest.param(b"\x1b]0;title\x07text", "text", id="window title"),
        pytest.param(b"\x07bell\x08", "bell", id="bell and backspace"),
        pytest.param(b"tab\there", "tab\there", id="tab"),
        pytest.param(b"\x1b(0lqk", "lqk", id="character set"),
    ],
)
def test_control_characters_do_not_reach_the_terminal(raw: bytes, shown: str) -> None:
    assert printable(raw) == shown


@given(st.binary())
def test_whatever_a_rank_writes_only_colors_are_left(data: bytes) -> None:
    text = without_color(printable(data))
    assert not any((c < " " and c not in "\t\n") or "\x7f" <= c <= "\x9f" for c in text)
