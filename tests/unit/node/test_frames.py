from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.node import frames

FRAMES = st.one_of(
    st.dictionaries(st.text(), st.integers() | st.text()),
    st.builds(
        frames.Output, st.integers(-1, 2**31 - 1), st.sampled_from([1, 2]),
        st.floats(allow_nan=False), st.binary(),
    ),
    st.builds(frames.Data, st.integers(0, 2**32 - 1), st.binary()),
)  # fmt: skip


def pack(frame: frames.Frame) -> bytes:
    if isinstance(frame, frames.Output):
        body = frames.output_body(frame.rank, frame.stream, frame.time, frame.data)
        return frames.frame(frames.OUTPUT, body, 7)
    if isinstance(frame, frames.Data):
        return frames.pack_data(frame.id, frame.data)
    return frames.pack_message(frame)


def parts(frame: frames.Frame) -> object:
    """What can be compared."""
    if isinstance(frame, frames.Output):
        return frame.rank, frame.stream, frame.time, frame.data
    return (frame.id, frame.data) if isinstance(frame, frames.Data) else frame


@given(st.lists(FRAMES), st.integers(1, 50))
def test_frames_come_out_as_they_went_in_however_they_were_cut(
    sent: list[frames.Frame], size: int
) -> None:
    data = b"".join(map(pack, sent))
    decoder = frames.Decoder()
    pieces = (data[i : i + size] for i in range(0, len(data), size))
    received = [frame for piece in pieces for frame in decoder.feed(piece)]
    assert list(map(parts, received)) == list(map(parts, sent))


@pytest.mark.parametrize(
    "noise", [b"Welcome to node01!\n", b"\xff" * 20, b"\0\0\0\2\1" + bytes(8) + b"[]"]
)
def test_what_is_no_frame_is_an_error(noise: bytes) -> None:
    with pytest.raises(frames.FrameError):
        list(frames.Decoder().feed(noise))


@given(st.binary())
def test_any_bytes_are_frames_or_a_frame_error(data: bytes) -> None:
    try:
        list(frames.Decoder().feed(data))
    except frames.FrameError as error:
        assert "not a" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"\xff\xfe", b"[" * 200_000, b"9" * 5000, b"{}{}", b'{"a": }', b"[]"),
        b'{"a": [' + b"{}," * 600_000 + b"{}]}",
    ],
    ids=repr,
)
def test_what_is_no_json_object_or_has_too_many_values_is_an_error(text: bytes) -> None:
    with pytest.raises(frames.FrameError):
        frames.read_message(text)


def test_a_message_longer_than_any_is_refused_before_it_has_come() -> None:
    header = frames.HEADER.pack(frames.LONGEST[frames.MESSAGE] + 1, frames.MESSAGE, 0)
    with pytest.raises(frames.FrameError):
        list(frames.Decoder().feed(header))
