from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.run.lines import LONGEST, BarState, Block, Lines, last_state, printable
from dslaunch.terminal import COLOR, PLAIN, UNSAFE, without_color


def split(*pieces: bytes, now: float = 0.0) -> list[bytes]:
    """Return the lines of a stream that arrives in pieces."""
    lines = Lines()
    found = [each for piece in pieces for each in lines.feed(piece, now)]
    blocks = [*(each for each in found if isinstance(each, Block)), *lines.rest()]
    return [line for block in blocks for line in block.text.split(b"\n")]


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
def test_each_line_is_in_its_last_state_however_the_bytes_were_cut(
    pieces: list[bytes], cut: int
) -> None:
    text = b"".join(pieces) + b"\n"
    lines = split(*(text[at : at + cut] for at in range(0, len(text), cut)))
    assert lines == [last_state(line) for line in text[:-1].split(b"\n")]


@given(st.lists(st.text(alphabet="a\t\r\x00\x1b[]31m;\x07\xe9\u202e").map(str.encode), min_size=1))
def test_lines_are_printable_together_as_one_by_one(lines: list[bytes]) -> None:
    assert printable(b"\n".join(lines)) == "\n".join(map(printable, lines))


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
    blocks = [each for each in lines.feed(b"x" * (3 * LONGEST + 1), 0) if isinstance(each, Block)]
    assert [len(block.text) for block in blocks] == [LONGEST] * 3
    assert [block.continues for block in blocks] == [False, True, True]


def test_the_rest_of_a_line_that_was_split_continues_it_and_the_next_line_does_not() -> None:
    lines = Lines()
    list(lines.feed(b"x" * (LONGEST + 1), 0))
    assert list(lines.feed(b"y\nnext\n", 0)) == [Block(b"xy\nnext", continues=True)]
    assert list(lines.feed(b"last\n", 0)) == [Block(b"last")]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        pytest.param(b"plain \xc3\xa9", "plain é", id="unicode"),
        pytest.param(b"bad \xff", "bad \ufffd", id="invalid UTF-8"),
        pytest.param(b"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m", id="color, closed"),
        pytest.param(b"\x1b[31mred", "\x1b[31mred\x1b[0m", id="color, open"),
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
    assert UNSAFE.search(without_color(printable(data))) is None


@given(st.text(alphabet="a\t\n\x00\x1b[]0;31m\x07\x9b\u202e\u2066\ufeff"))
def test_a_line_with_a_color_ends_without_it(text: str) -> None:
    for line in printable(text.encode()).split("\n"):
        colors = COLOR.findall(line)
        assert not colors or colors[-1] == PLAIN
