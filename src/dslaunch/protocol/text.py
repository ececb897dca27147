"""From the bytes of a node to JSON values of bounded size, before anything else looks at them."""

from __future__ import annotations

import json
import re
from typing import Any

from dslaunch.node.frames import MOST_VALUES, most_values
from dslaunch.protocol.values import InvalidAnswer

MOST_LINE = 8 << 20
"""Bytes of one line. Honest nodes send less than 1 MiB. It may take four times as much memory."""
MOST_LINES = 24 << 20
"""Bytes of all lines of one node."""
MOST_NOISE = 8 << 20
"""Bytes that a login shell may write beside our lines."""
NOISE_KEPT = 64 << 10
_HALF_CHARACTERS = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
"""What a node writes for bytes of a file's name that are no UTF-8."""


def json_value(text: bytes) -> Any:
    """Return what a JSON text means. Raises InvalidAnswer for one that is no JSON or too large."""
    if len(text) > MOST_LINE:
        raise InvalidAnswer(f"longer than {MOST_LINE >> 20} MiB")
    if most_values(text) > MOST_VALUES:
        raise InvalidAnswer(f"more than {MOST_VALUES:,} values")
    try:
        return json.loads(_HALF_CHARACTERS.sub(rb"\\ufffd", text).decode("utf-8", "replace"))
    except ValueError:
        raise InvalidAnswer("not JSON") from None
    except RecursionError:
        raise InvalidAnswer("nested too deeply") from None


class MarkedLines:
    """Finds the lines that begin with our mark in what a node writes; all else is noise.

    Every byte is looked at once, however small the pieces are in which it comes.
    """

    def __init__(self, mark: bytes) -> None:
        self.noise = b""
        """The beginning of what was written beside our lines."""
        self._mark = mark
        self._left = bytearray()
        self._searched = 0
        """Bytes of what is left in which there is no end of the line, or no mark."""
        self._in_line = False
        self._noise_size = 0
        self._lines_size = 0

    def add(self, piece: bytes) -> None:
        """Take what has come."""
        self._left += piece

    def next(self) -> bytes | None:
        """Return the next line without its mark; None: it is not complete.

        Raises InvalidAnswer for more bytes than a node that works sends.
        """
        if not self._in_line and not self._find_mark():
            return None
        end = self._left.find(b"\n", self._searched)
        size = end if end >= 0 else len(self._left)
        if size > MOST_LINE:
            raise InvalidAnswer(f"a line of more than {MOST_LINE >> 20} MiB")
        if self._lines_size + size > MOST_LINES:
            raise InvalidAnswer(f"more than {MOST_LINES >> 20} MiB of answers")
        if end < 0:
            self._searched = len(self._left)
            return None
        self._lines_size += end
        line = bytes(self._left[:end])
        self._drop(end + 1)
        self._in_line = False
        return line

    def unread(self) -> str:
        """Return the text that came and was no line of ours, for a message."""
        return (self.noise + self._left[:NOISE_KEPT]).decode(errors="replace")

    def _find_mark(self) -> bool:
        at = self._left.find(self._mark, self._searched)
        self._in_line = at >= 0
        # the end of what is left may be the beginning of the mark
        noise = at if self._in_line else max(0, len(self._left) - len(self._mark) + 1)
        self._noise_size += noise
        self.noise += self._left[: min(noise, NOISE_KEPT - len(self.noise))]
        self._drop(noise + len(self._mark) if self._in_line else noise)
        if self._noise_size > MOST_NOISE:
            raise InvalidAnswer(f"more than {MOST_NOISE >> 20} MiB that are no answers")
        return self._in_line

    def _drop(self, size: int) -> None:
        del self._left[:size]
        self._searched = 0
