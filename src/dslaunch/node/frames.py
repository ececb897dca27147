"""Frames between launcher and agent: messages, output and file data, in both directions.

A frame is a header (length of the body, kind, number) and a body. Messages are JSON objects;
output is raw bytes of one rank's stream with its time; data is a piece of a file that is being
sent. Frames that must survive a broken connection carry a number, counted from 1 on each node.

Either end may be hostile: every length is bounded before anything is kept, and the values of a JSON
text, which take far more memory than bytes, are counted before it is parsed.
"""

from __future__ import annotations

import struct

from dslaunch.node import plain_json

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable, Dict, Iterator, Union

    Message = Dict[str, Any]
    Frame = Union[Message, "Output", "Data"]

GREETING = b"\0dslaunch-agent-2\n"
"""The agent's first bytes. Output of a login shell before them is noise."""

HEADER = struct.Struct(">IBQ")
_OUTPUT = struct.Struct(">iBd")
_DATA = struct.Struct(">I")
MESSAGE, OUTPUT, DATA = 1, 2, 3
LONGEST = {MESSAGE: 16 << 20, OUTPUT: 1 << 20, DATA: 1 << 20}
"""Bytes of a body, by kind. The largest messages list the files of all checkpoints of a node."""
_MOST_FIRST_BYTE = max(LONGEST.values()) >> 24
"""The largest first byte of a header. Any text begins with a larger one."""
_MOST_FOUND = 1024
"""Bytes that an error quotes."""
_SHORTEST = {MESSAGE: 2, OUTPUT: _OUTPUT.size, DATA: _DATA.size}
MOST_VALUES = 500_000
"""Values in one JSON text, at most. A value of 3 bytes takes up to 200 in memory: a text of the
largest size could take more than 1 GB."""
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

    def __init__(self, text: str, found: bytes = b"") -> None:
        """`found`: the first bytes that are no frame, where a frame must begin."""
        super().__init__(text)
        self.found = found


def frame(kind: int, body: bytes, number: int = 0) -> bytes:
    """Return a body with its header."""
    return HEADER.pack(len(body), kind, number) + body


def message_body(message: Message) -> bytes:
    """Return a JSON object as the body of a message."""
    return plain_json.ascii_text(message).encode()


def output_body(rank: int, stream: int, time: float, data: bytes) -> bytes:
    """Return a piece of output as the body of a frame."""
    return _OUTPUT.pack(rank, stream, time) + data


def pack_message(message: Message) -> bytes:
    """Return a JSON object as a frame without a number."""
    return frame(MESSAGE, message_body(message))


def pack_data(id: int, data: bytes) -> bytes:
    """Return a piece of a file as a frame."""
    return frame(DATA, _DATA.pack(id) + data)


class Decoder:
    """Turns bytes as they arrive into whole frames."""

    __slots__ = ("_buffer", "_read", "number", "size")

    def __init__(self, read: Callable[[bytes], Message] | None = None) -> None:
        """`read`: what reads messages; None: `read_message`."""
        self.number = 0
        """The number of the last frame that had one."""
        self.size = 0
        """Bytes of the last frame's body."""
        self._buffer = bytearray()
        self._read = read or read_message

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add bytes and yield every frame that is complete now. Raises FrameError."""
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) > start:
                if self._buffer[start] > _MOST_FIRST_BYTE:  # no header, whatever follows
                    found = bytes(self._buffer[start : start + _MOST_FOUND])
                    raise FrameError("not a frame", found)
                if len(self._buffer) - start < HEADER.size:
                    break
                length, kind, number = HEADER.unpack_from(self._buffer, start)
                if not _SHORTEST.get(kind, 1) <= length <= LONGEST.get(kind, 0):
                    raise FrameError(f"not a frame: kind {kind}, {length} bytes")
                end = start + HEADER.size + length
                if len(self._buffer) < end:
                    break
                body = bytes(memoryview(self._buffer)[start + HEADER.size : end])
                start = end
                self.number = number or self.number
                self.size = length
                if kind == MESSAGE:
                    yield self._read(body)
                else:
                    yield _decode(kind, body)
        finally:
            del self._buffer[:start]


def _decode(kind: int, body: bytes) -> Output | Data:
    if kind == OUTPUT:
        rank, stream, when = _OUTPUT.unpack_from(body)
        return Output(rank, stream, when, body[_OUTPUT.size :])
    return Data(_DATA.unpack_from(body)[0], body[_DATA.size :])


def most_values(text: bytes) -> int:
    """Return an upper limit of how many values a JSON text has, without parsing it."""
    return sum(map(text.count, (b"[", b"{", b",")))


def read_message(body: bytes) -> Message:
    """Return a JSON object. Raises FrameError for anything else, and for one too large to keep."""
    if most_values(body) > MOST_VALUES:
        raise FrameError(f"a message of more than {MOST_VALUES} values")
    import json  # see plain_json.py

    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not a message: {type(error).__name__}") from None
    if not isinstance(message, dict):
        raise FrameError("not a message: no object")
    return message
