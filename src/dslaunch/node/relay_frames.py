"""Frames between the launcher and a relay: many byte streams over one.

A frame is a header (kind, channel, length of the body) and a body. Channel 0 is the relay itself,
each other number is one login of the relay to a child. A child may be a relay too: the bytes of its
own frames are data of its channel, so that a relay needs no knowledge of what is behind a child.

Both directions of a channel have a window: the sender of data stops when so many bytes are on their
way, and continues when the receiver has passed some on. A program that reads nothing, or a launcher
that is busy, therefore blocks its own channel only, and memory is bounded.

Either end may be hostile: every length is bounded before anything is kept.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Iterator, Tuple

GREETING = b"\0dslaunch-relay-1\n"
"""The relay's first bytes. Output of a login shell before them is noise."""
HEADER = struct.Struct(">BII")
END = struct.Struct(">iB")
"""Of an END frame: exit code and how it ended; error output follows."""
AMOUNT = struct.Struct(">I")
"""Of a PASSED frame: bytes; of a TEXT frame: the place of the text."""

OPEN = 1
"""Log in to a child: JSON."""
OPENED = 2
"""The login succeeded."""
DATA = 3
"""Bytes of standard input or standard output."""
DEFINE = 4
"""A text to keep, for several children. The number is not a channel but the place of the text,
which replaces what was kept there."""
TEXT = 5
"""The text at this place is the next standard input, instead of DATA."""
PASSED = 6
"""So many bytes of DATA have been passed on."""
INPUT_ENDED, OUTPUT_ENDED = 7, 8
"""The end of standard input, and of standard output."""
CLOSE = 9
"""End the login now."""
FINISHED = 10
"""The login has ended: END, then standard error."""
PING = 11
"""Send the same back."""
EXITED, NO_SSH, NO_LOGIN, INVALID = range(4)
"""How a login ended: ssh exited; there is no ssh; it took too long; the child's address or user is
not valid."""

INPUT_WINDOW = 1 << 20
"""Bytes of input of a channel that may be on their way. A program of ours fits twice, so that
nothing is to be reported while thousands of nodes get theirs."""
OUTPUT_WINDOW = 256 * 1024
"""Bytes of output of a channel that may be on their way."""
PIECE = 64 * 1024
"""Bytes of one DATA frame, at most."""
STDERR_KEPT = 64 * 1024
"""Bytes of a child's error output that are kept."""
MOST_TEXT = 512 * 1024
"""Bytes of a text that is kept, at most."""
PLACES = 32
"""Texts that are kept for several children."""
_LIMITS = {
    OPEN: (2, 4096),
    OPENED: (0, 0),
    DATA: (1, PIECE),
    TEXT: (AMOUNT.size, AMOUNT.size),
    DEFINE: (1, MOST_TEXT),
    PASSED: (AMOUNT.size, AMOUNT.size),
    INPUT_ENDED: (0, 0),
    OUTPUT_ENDED: (0, 0),
    CLOSE: (0, 0),
    FINISHED: (END.size, END.size + STDERR_KEPT),
    PING: (0, 0),
}
"""The sizes of a body, by kind."""


class RelayFrameError(ValueError):
    """The bytes are no frames of a relay."""


def header(kind: int, channel: int, size: int) -> bytes:
    """Return the header of a frame whose body has `size` bytes."""
    return HEADER.pack(kind, channel, size)


def frame(kind: int, channel: int, body: bytes = b"") -> bytes:
    """Return a whole frame."""
    return HEADER.pack(kind, channel, len(body)) + body


def passed(channel: int, amount: int) -> bytes:
    """Return the frame which says that so many bytes of data have been passed on."""
    return frame(PASSED, channel, AMOUNT.pack(amount))


def finished(channel: int, code: int, how: int, stderr: bytes) -> bytes:
    """Return the frame about the end of a login."""
    return frame(FINISHED, channel, END.pack(code, how) + stderr[-STDERR_KEPT:])


def text(channel: int, place: int) -> bytes:
    """Return the frame which says that the text at a place is the next standard input."""
    return frame(TEXT, channel, AMOUNT.pack(place))


def amount_of(body: bytes) -> int:
    """Return the number in a PASSED or TEXT frame."""
    amount: int = AMOUNT.unpack(body)[0]
    return amount


def end_of(body: bytes) -> Tuple[int, int, bytes]:
    """Return exit code, how it ended, and the error output of a FINISHED frame."""
    code, how = END.unpack_from(body)
    return code, how, body[END.size :]


class Decoder:
    """Turns bytes as they arrive into whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Tuple[int, int, bytes]]:
        """Add bytes; yield kind, channel and body of every frame that is complete now.

        Raises RelayFrameError.
        """
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= HEADER.size:
                kind, channel, size = HEADER.unpack_from(self._buffer, start)
                least, most = _LIMITS.get(kind, (1, 0))
                if not least <= size <= most:
                    raise RelayFrameError(f"not a frame: kind {kind}, {size} bytes")
                end = start + HEADER.size + size
                if len(self._buffer) < end:
                    break
                body = bytes(memoryview(self._buffer)[start + HEADER.size : end])
                start = end
                yield kind, channel, body
        finally:
            del self._buffer[:start]
