"""Read the output that this machine has recorded of a run: all of it, the newest, or what comes.

The file `order` of a run directory has an entry of fixed size for every piece of output, so that
reading can begin at its end: of a large record only the last pieces are touched.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from dslaunch.node import private
from dslaunch.run.run_directory import (
    ARRIVAL,
    LOGS,
    OPEN_LOGS,
    ORDER,
    SOURCES,
    arrivals,
    log_source,
    open_recorded,
)

POLL = 0.2
"""Seconds between two looks for new output."""
BLOCK = 4096
"""Entries of `order` that are read at a time."""

LARGEST = 1 << 20
"""Bytes of a piece; only a damaged record has larger ones."""


class Piece(NamedTuple):
    """One piece of output, as `order` and the logs have it."""

    time: float
    """Seconds since the epoch."""
    log: int
    """Its line in `sources`."""
    stream: int
    start: int
    """Where it begins in the log, in bytes."""
    size: int


class Position(Struct, frozen=True):
    """How far a record was read."""

    entries: int = 0
    offsets: dict[int, int] = field(default_factory=dict)
    """Log -> bytes."""


class RecordedOutput:
    """The recorded output of a run. As a context manager it closes what it has opened."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._sources: list[str] = []
        self._log_directory: int | None = None
        self._logs: OrderedDict[int, int] = OrderedDict()

    def __enter__(self) -> RecordedOutput:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._logs.values():
            os.close(fd)
        self._logs.clear()
        if self._log_directory is not None:
            os.close(self._log_directory)
            self._log_directory = None

    def sources(self) -> tuple[tuple[str, int | None], ...]:
        """Return the ranks and launchers with output: host, and rank or None."""
        self._read_sources()
        return tuple(map(log_source, self._sources))

    def source(self, log: int) -> tuple[str, int | None] | None:
        """Return whose log this is; None: the record is damaged."""
        if log >= len(self._sources):
            self._read_sources()
        return log_source(self._sources[log]) if log < len(self._sources) else None

    def data(self, piece: Piece) -> bytes:
        """Return the bytes of a piece; fewer or none where the log is damaged."""
        try:
            return os.pread(self._open(piece.log), min(piece.size, LARGEST), piece.start)
        except (OSError, IndexError):
            return b""

    def end(self) -> Position:
        """Return the position behind all that is recorded now.

        A log is written before `order`, so the logs may be a piece ahead: its text is then shown
        with the pieces before it, and nothing is lost.
        """
        entries = self.entries()
        return Position(entries, {log: self._size(log) for log in range(len(self.sources()))})

    def entries(self) -> int:
        """Return how many pieces are recorded now."""
        try:
            return (self.directory / ORDER).stat().st_size // ARRIVAL.size
        except OSError:
            return 0

    def backward(self, end: Position) -> Iterator[Piece]:
        """Yield the pieces before a position, the newest first. For logs whose offsets it lacks
        that is the end."""
        offsets = dict(end.offsets)
        until = end.entries
        if not until:
            return
        with open_recorded(self.directory / ORDER) as file:
            while until > 0:
                first = max(0, until - BLOCK)
                file.seek(first * ARRIVAL.size)
                block = file.read((until - first) * ARRIVAL.size)
                for when, log, stream, size in reversed(list(_entries(block))):
                    if log not in offsets:
                        offsets[log] = self._size(log)
                    start = max(0, offsets[log] - size)
                    offsets[log] = start
                    yield Piece(when, log, stream, start, size)
                until = first

    def forward(
        self, begin: Position = Position(), follow: Callable[[], bool] = lambda: False
    ) -> Iterator[Piece | None]:
        """Yield the pieces behind a position in the order of arrival. At the end it waits for more
        while `follow` returns true, and yields None before each wait."""
        offsets = dict(begin.offsets)
        try:
            file = open_recorded(self.directory / ORDER)
        except OSError:
            return
        with file:
            file.seek(begin.entries * ARRIVAL.size)
            while True:
                going = follow()
                while block := _whole(file.read(BLOCK * ARRIVAL.size)):
                    for when, log, stream, size in _entries(block):
                        start = offsets.get(log, 0)
                        offsets[log] = start + size
                        yield Piece(when, log, stream, start, size)
                    file.seek(-(file.tell() % ARRIVAL.size), os.SEEK_CUR)
                file.seek(-(file.tell() % ARRIVAL.size), os.SEEK_CUR)
                if not going:
                    return
                yield None
                time.sleep(POLL)

    def _read_sources(self) -> None:
        with contextlib.suppress(OSError), open_recorded(self.directory / SOURCES) as file:
            self._sources = file.read().decode("utf-8", "replace").splitlines()

    def _size(self, log: int) -> int:
        if self.source(log) is None:
            return 0
        try:
            name, within = self._place(log)
            return os.lstat(name, dir_fd=within).st_size
        except OSError:
            return 0

    def _place(self, log: int) -> tuple[str, int]:
        """Return the name of a log, and the open directory that it is in. Raises OSError, also for
        a name that leads out of it: another user may have made the record."""
        if self._log_directory is None:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._log_directory = os.open(self.directory / LOGS, flags)
        name = self._sources[log]
        if "/" in name or "\0" in name:
            raise PermissionError(errno.EPERM, "not a name of a log", name)
        return name, self._log_directory

    def _open(self, log: int) -> int:
        if log not in self._logs:
            if len(self._logs) >= OPEN_LOGS:
                os.close(self._logs.popitem(last=False)[1])
            name, within = self._place(log)
            self._logs[log] = private.open_file(name, os.O_RDONLY, within)
        self._logs.move_to_end(log)
        return self._logs[log]


def _whole(block: bytes) -> bytes:
    """Return the entries of a block without a part of one that is being written."""
    return block[: len(block) - len(block) % ARRIVAL.size]


def _entries(block: bytes) -> Iterator[tuple[float, int, int, int]]:
    for when, log, stream, size in arrivals(_whole(block)):
        yield when if math.isfinite(when) else 0.0, log, stream, size


def by_time(pieces: Iterable[Piece]) -> list[Piece]:
    """Return pieces sorted by time; those of one log keep their order, also if a clock was set
    back."""
    latest: dict[int, float] = {}
    timed = []
    for piece in pieces:
        latest[piece.log] = max(piece.time, latest.get(piece.log, 0.0))
        timed.append((latest[piece.log], piece))
    return [piece for _, piece in sorted(timed, key=itemgetter(0))]


class SampledPiece(Struct, frozen=True):
    """A piece of the recorded output of a rank, or of the launcher of a node."""

    host: str
    rank: int | None
    stream: int
    """1 or 2."""
    time: float
    data: bytes
    after_gap: bool
    """Whether output before it was left out."""


SAMPLED_PARTS = 16
"""Parts of a log that is too long to be read as a whole."""


def sample_output(directory: Path, most: int) -> Iterator[SampledPiece]:
    """Yield the recorded output in the order of time; of more than `most` bytes only parts.

    The parts are spread evenly over each log, and its end is one of them.
    """
    with RecordedOutput(directory) as recorded:
        pieces = by_time(piece for piece in recorded.forward() if piece is not None)
        sizes: dict[int, int] = {}
        for piece in pieces:
            sizes[piece.log] = piece.start + piece.size
        share = most // max(len(sizes), 1)
        has_gap = dict.fromkeys(sizes, False)
        for piece in pieces:
            source = recorded.source(piece.log)
            if source is None or not _is_sampled(piece.start, sizes[piece.log], share):
                has_gap[piece.log] = True
                continue
            data = recorded.data(piece)
            yield SampledPiece(*source, piece.stream, piece.time, data, has_gap[piece.log])
            has_gap[piece.log] = False


def _is_sampled(start: int, size: int, share: int) -> bool:
    """Return whether a piece that begins there belongs to the parts of a log that are read."""
    if size <= share:
        return True
    part = share // SAMPLED_PARTS
    return start % (size // SAMPLED_PARTS) < part or size - start <= part
