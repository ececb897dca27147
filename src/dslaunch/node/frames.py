"""The bytes between launcher and agent: framed messages, output and file data, both ways.

A frame is a header (length of the body, kind, number) and a body. Messages are JSON objects;
output is raw bytes of one rank's stream with its time; data is a piece of a file that is being
sent. What must not be lost when a connection is has a number, counted from 1 on each node.
"""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, Iterator, Union

    Message = Dict[str, Any]
    Frame = Union[Message, "Output", "Data"]

GREETING = b"\0dslaunch-agent-2\n"
"""The agent's first bytes. Whatever a login shell printed before them is noise."""

HEADER = struct.Struct(">IBQ")
_OUTPUT = struct.Struct(">iBd")
_DATA = struct.Struct(">I")
MESSAGE, OUTPUT, DATA = 1, 2, 3
_LARGEST = 256 * 1024 * 1024
NO_RANK = -1


class Output:
    """A piece of what one rank, or the node's launcher (`NO_RANK`), wrote."""

    __slots__ = ("data", "rank", "stream", "time")

    def __init__(self, rank: int, stream: int, time: float, data: bytes) -> None:
        """`stream` 1: standard output, 2: standard error; `time`: seconds since the epoch by the
        node's clock."""
        self.rank, self.stream, self.time, self.data = rank, stream, time, data


class Data:
    """A piece of a file for request `id`; empty: the end."""

    __slots__ = ("data", "id")

    def __init__(self, id: int, data: bytes) -> None:
        self.id, self.data = id, data


class FrameError(ValueError):
    """The bytes are no frames: something else writes into the connection."""


def frame(kind: int, body: bytes, number: int = 0) -> bytes:
    """Put a header before a body."""
    return HEADER.pack(len(body), kind, number) + body


def message_body(message: Message) -> bytes:
    """A JSON object as the body of a message."""
    return json.dumps(message, separators=(",", ":")).encode()


def output_body(rank: int, stream: int, time: float, data: bytes) -> bytes:
    """A piece of output as the body of a frame."""
    return _OUTPUT.pack(rank, stream, time) + data


def pack_message(message: Message) -> bytes:
    """Frame a JSON object that has no number."""
    return frame(MESSAGE, message_body(message))


def pack_data(id: int, data: bytes) -> bytes:
    """Frame a piece of a file."""
    return frame(DATA, _DATA.pack(id) + data)


class Decoder:
    """Turns bytes as they come into whole frames."""

    def __init__(self) -> None:
        self.number = 0
        """That of the last frame that had one."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add bytes and give every frame that is whole now. Raises FrameError."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= HEADER.size:
            length, kind, number = HEADER.unpack_from(self._buffer, start)
            if length > _LARGEST or kind not in (MESSAGE, OUTPUT, DATA):
                raise FrameError(f"not a frame: {bytes(self._buffer[start : start + 40])!r}")
            end = start + HEADER.size + length
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[start + HEADER.size : end])
            start = end
            self.number = number or self.number
            yield _decode(kind, body)
        del self._buffer[:start]


def _decode(kind: int, body: bytes) -> Frame:
    if kind == OUTPUT:
        rank, stream, when = _OUTPUT.unpack_from(body)
        return Output(rank, stream, when, body[_OUTPUT.size :])
    if kind == DATA:
        return Data(_DATA.unpack_from(body)[0], body[_DATA.size :])
    try:
        message = json.loads(body)
    except ValueError as error:
        raise FrameError(f"not a message: {error}") from None
    if not isinstance(message, dict):
        raise FrameError(f"not a message: {body[:40]!r}")
    return message
