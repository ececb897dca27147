"""Frames of a relay: whatever arrives, frames come out as they went in or the sender is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.node import relay_frames as frames

NUMBERS = st.integers(0, 2**32 - 1)
FRAMES = st.one_of(
    st.tuples(st.just(frames.OPEN), NUMBERS, st.binary(min_size=2, max_size=300)),
    st.tuples(st.just(frames.DATA), NUMBERS, st.binary(min_size=1, max_size=300)),
    st.tuples(st.just(frames.DEFINE), NUMBERS, st.binary(min_size=1, max_size=300)),
    st.tuples(st.just(frames.TEXT), NUMBERS, st.binary(min_size=4, max_size=4)),
    st.tuples(
        st.sampled_from([frames.OPENED, frames.INPUT_ENDED, frames.CLOSE, frames.PING]),
        NUMBERS,
        st.just(b""),
    ),
)


@given(st.lists(FRAMES), st.integers(1, 70))
def test_frames_come_out_as_they_went_in_however_they_were_cut(
    sent: list[tuple[int, int, bytes]], size: int
) -> None:
    data = b"".join(frames.frame(*each) for each in sent)
    decoder = frames.Decoder()
    pieces = (data[start : start + size] for start in range(0, len(data), size))
    assert [each for piece in pieces for each in decoder.feed(piece)] == sent


@given(st.binary(max_size=400), st.integers(1, 50))
def test_any_other_bytes_are_refused_or_waited_for_but_never_kept_without_limit(
    data: bytes, size: int
) -> None:
    decoder = frames.Decoder()
    try:
        for start in range(0, len(data), size):
            for kind, _, body in decoder.feed(data[start : start + size]):
                assert kind in range(frames.OPEN, frames.PING + 1)
                assert len(body) <= frames.PIECE + frames.HEADER.size
    except frames.RelayFrameError:
        pass


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (0, 1), (99, 1), (frames.DATA, 0), (frames.DATA, frames.PIECE + 1),
        (frames.DEFINE, frames.MOST_TEXT + 1), (frames.TEXT, 5), (frames.PASSED, 5),
        (frames.OPENED, 1), (frames.FINISHED, 4), (frames.OPEN, 5000),
    ],
)  # fmt: skip
def test_a_size_that_its_kind_does_not_have_is_refused_before_the_body_arrives(
    kind: int, size: int
) -> None:
    with pytest.raises(frames.RelayFrameError):
        list(frames.Decoder().feed(frames.header(kind, 1, size)))


@given(st.integers(-255, 255), st.integers(0, 3), st.binary(max_size=frames.STDERR_KEPT + 10))
def test_the_end_of_a_login_has_its_code_its_kind_and_the_end_of_its_errors(
    code: int, how: int, errors: bytes
) -> None:
    [(kind, number, body)] = frames.Decoder().feed(frames.finished(7, code, how, errors))
    assert (kind, number) == (frames.FINISHED, 7)
    assert frames.end_of(body) == (code, how, errors[-frames.STDERR_KEPT :])
