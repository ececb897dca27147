"""Where the ranks' output comes from: pipes of what we started, or files a launcher writes."""

from __future__ import annotations

import glob
import os
import time

from dslaunch.node.postmortem import read_error_file

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Dict, Iterator, List, Optional, Tuple

STDOUT, STDERR = 1, 2
PIECE = 64 * 1024
SEARCH_INTERVAL = 2.0
"""Seconds between two searches for files of ranks that a launcher has started again, unless it is
seen to have done so."""


class Pipe:
    """The reading end of one process's standard output or error."""

    def __init__(self, fd: int, rank: int, stream: int) -> None:
        self.fd = fd
        self.rank = rank
        self.stream = stream
        os.set_blocking(fd, False)

    def read(self) -> Optional[bytes]:
        """What is there now: empty at the end, None if there is nothing yet."""
        try:
            return os.read(self.fd, PIECE)
        except BlockingIOError:
            return None

    def drain(self) -> Iterator[bytes]:
        """All that is there now."""
        while True:
            data = self.read()
            if not data:
                return
            yield data

    def close(self) -> None:
        """Let go of it."""
        os.close(self.fd)


class Tail:
    """The files below one directory in which a launcher puts its ranks' output."""

    def __init__(self, directory: str, patterns: Dict[str, Optional[str]], ranks: range) -> None:
        self.directory = directory
        self.wanted: List[Tuple[int, int, str]] = []
        for local_rank, rank in enumerate(ranks):
            for stream, pattern in ((STDOUT, patterns["stdout"]), (STDERR, patterns["stderr"])):
                if pattern is not None:
                    name = pattern.format(rank=rank, local_rank=local_rank)
                    self.wanted.append((rank, stream, os.path.join(glob.escape(directory), name)))
        self.errors: Dict[int, str] = {}
        pattern = patterns.get("error")
        if pattern is not None:
            for local_rank, rank in enumerate(ranks):
                name = pattern.format(rank=rank, local_rank=local_rank)
                self.errors[rank] = os.path.join(glob.escape(directory), name)
        self.offsets: Dict[str, int] = {}
        self.paths: Dict[str, List[str]] = {}
        self.searched = 0.0

    def error_file(self, rank: int) -> Optional[str]:
        """The text of the rank's error file, if its launcher and script made one."""
        paths = sorted(glob.glob(self.errors[rank])) if rank in self.errors else []
        return read_error_file(paths[-1]) if paths else None

    def read(self, *, search: bool = True) -> Iterator[Tuple[int, int, bytes]]:
        """What was written since the last call: rank, stream, data.

        Without `search` new files are found later, once each rank has one: to look for names costs
        far more than to read.
        """
        if search or self._has_come() or time.monotonic() - self.searched > SEARCH_INTERVAL:
            self.searched = time.monotonic()
            self.paths = {pattern: sorted(glob.glob(pattern)) for _, _, pattern in self.wanted}
        for rank, stream, pattern in self.wanted:
            for path in self.paths.get(pattern, ()):
                for data in self._new(path):
                    yield rank, stream, data

    def expect_more(self) -> None:
        """A launcher has started a rank: look for its files at the next reading."""
        self.searched = float("-inf")

    def _has_come(self) -> bool:
        """Whether the first file that is missing is there now: launchers make them in this order;
        in any other they are found by a search."""
        missing = (pattern for _, _, pattern in self.wanted if not self.paths.get(pattern))
        first = next(missing, None)
        return first is not None and bool(glob.glob(first))

    def _new(self, path: str) -> Iterator[bytes]:
        offset = self.offsets.get(path, 0)
        try:
            if os.stat(path).st_size <= offset:  # to open it would cost ten times as much
                return
            fd = os.open(path, os.O_RDONLY)
        except OSError:  # somebody has removed it
            return
        with os.fdopen(fd, "rb", buffering=0) as file:
            file.seek(offset)
            while True:
                data = file.read(PIECE)
                if not data:
                    return
                self.offsets[path] = file.tell()
                yield data
