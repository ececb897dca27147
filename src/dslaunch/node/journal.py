"""The frames that a node has sent, kept until the launcher has confirmed them: a broken connection
loses nothing. They are in memory for an attached run, in a file for a detached one.
"""

from __future__ import annotations

import os
from array import array

from dslaunch.node import frames, private

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import List, Tuple

PIECE = 256 * 1024


class Journal:
    """Numbered frames in memory. Numbers count from 1."""

    def __init__(self) -> None:
        self.last = 0
        """The number of the newest frame."""
        self.waiting = 0
        """Bytes that are not confirmed yet."""
        self._frames: List[bytes] = []
        self._released = 0

    def append(self, kind: int, body: bytes) -> None:
        """Add a frame."""
        self.last += 1
        self._frames.append(frames.frame(kind, body, self.last))
        self.waiting += len(self._frames[-1])

    def read(self, after: int, most: int = PIECE) -> Tuple[bytes, int]:
        """Return the frames behind number `after`, about `most` bytes; and the last one's
        number."""
        first = index = max(after - self._released, 0)
        size = 0
        while index < len(self._frames) and size < most:
            size += len(self._frames[index])
            index += 1
        return b"".join(self._frames[first:index]), self._released + index

    def release(self, number: int) -> None:
        """Drop all frames up to `number`, which have arrived."""
        count = number - self._released
        if count > 0:
            self.waiting -= sum(map(len, self._frames[:count]))
            del self._frames[:count]
            self._released = number


class FileJournal:
    """Numbered frames in a file of limited size. Nothing waits for it."""

    waiting = 0

    def __init__(self, path: str, most: int) -> None:
        """`most`: bytes of output that are kept; later output is only counted."""
        self.last = 0
        self.dropped = 0
        """Bytes of output that were dropped."""
        self._most = most
        self._file = private.open_file(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._ends = array("Q", [0])

    def append(self, kind: int, body: bytes) -> None:
        """Add a frame; on a full disk, or beyond the limit, output is dropped."""
        data = frames.frame(kind, body, self.last + 1)
        end = self._ends[-1]
        try:
            if kind == frames.OUTPUT and end > self._most:
                raise OSError
            written = os.pwrite(self._file, data, end)
            if written < len(data):
                os.ftruncate(self._file, end)
                raise OSError
        except OSError:
            self.dropped += len(body)
            return
        self.last += 1
        self._ends.append(end + len(data))

    def read(self, after: int, most: int = PIECE) -> Tuple[bytes, int]:
        """Return the frames behind number `after`, about `most` bytes; and the last one's
        number."""
        until = after
        while until < self.last and self._ends[until] - self._ends[after] < most:
            until += 1
        start = self._ends[after]
        return os.pread(self._file, self._ends[until] - start, start), until

    def release(self, number: int) -> None:
        """Do nothing: the file stays for later requests."""
