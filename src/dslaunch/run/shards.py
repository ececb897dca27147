"""Copy a checkpoint's files between nodes and this machine: in pieces, over the connections that
are there, several at once. What was interrupted goes on where it stopped; what arrived is compared
with what was sent by its checksum before it appears."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import PurePosixPath
from typing import Any

from dslaunch.errors import PreflightError
from dslaunch.run.places import LONG, Place, PlaceError, result

PIECE = 1 << 20
AHEAD = 4
"""Pieces of a file that are asked for before the first of them is written."""
PER_END = 2
AT_ONCE = 32
"""Files that are copied at the same time: with each node, and in all."""
SPARE = 64 << 20
"""Bytes of a disk that are left free."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One file that is to be at another place."""

    source: Place
    source_path: str
    target: Place
    target_path: str
    size: int
    mtime: int
    """Nanoseconds since the epoch, as the source says; kept."""

    @property
    def key(self) -> str:
        """Of this version of the file: an earlier try with another key is of no use."""
        return hashlib.sha256(f"{self.size} {self.mtime}".encode()).hexdigest()[:16]


@dataclass(slots=True)
class Progress:
    """How far a copy has come. Bytes that were there already count as copied."""

    total: int
    files: int
    done: int = 0
    files_done: int = 0
    there: int = 0
    """Files that were there already."""
    resumed: int = 0
    """Bytes that an earlier try had brought."""
    began: float = field(default_factory=time.monotonic)


Tell = Callable[[Progress], None]


def copy(transfers: Sequence[Transfer], tell: Tell = lambda progress: None) -> Progress:
    """Copy all files; `tell` is called with each piece, from this thread.

    Raises PreflightError, before anything is copied, if a disk is too small; PlaceError or
    NodeError for the first file that cannot be copied. What was copied until then is of use to
    the next try.
    """
    check_room(transfers)
    work = _Work(Progress(sum(t.size for t in transfers), len(transfers)))
    ends = max(len({t.source.name for t in transfers}), len({t.target.name for t in transfers}))
    workers = min(AT_ONCE, PER_END * max(1, ends))
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work.one, transfer) for transfer in _in_turns(transfers)]
        try:
            for future in _finished(futures, lambda: tell(work.progress)):
                future.result()
        finally:
            work.stopped.set()
            pool.shutdown(cancel_futures=True)
    tell(work.progress)
    return work.progress


def _finished(futures: list[Future[None]], tell: Callable[[], None]) -> list[Future[None]]:
    """The futures, once all are done or one has failed; `tell` is called meanwhile."""
    left = set(futures)
    while left:
        try:
            for future in as_completed(left, timeout=LOOK):
                left.discard(future)
                if future.exception() is not None:
                    return [future]
        except TimeoutError:
            tell()
    return futures


LOOK = 0.5


def _in_turns(transfers: Sequence[Transfer]) -> list[Transfer]:
    """So ordered that all nodes are busy."""
    by_ends: dict[tuple[str, str], list[Transfer]] = {}
    for transfer in transfers:
        by_ends.setdefault((transfer.source.name, transfer.target.name), []).append(transfer)
    return [t for turn in zip_longest(*by_ends.values()) for t in turn if t is not None]


class _Work:
    """What the threads that copy share."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.stopped = threading.Event()
        self._lock = threading.Lock()

    def one(self, transfer: Transfer) -> None:
        """Copy one file, or what an earlier try has left of it."""
        target, path = transfer.target, transfer.target_path
        version = {"size": transfer.size, "mtime": transfer.mtime, "key": transfer.key}
        begun = result(target.ask("begin", path, **version))
        if not begun["there"]:
            checksum = transfer.source.ask("sha256", transfer.source_path)
            self._pieces(transfer, begun["offset"])
            if self.stopped.is_set():
                return
            version["sha256"] = result(checksum, LONG)
            result(target.ask("finish", path, **version), LONG)
        self._count(
            transfer.size if begun["there"] else 0,
            files_done=1,
            there=int(begun["there"]),
            resumed=0 if begun["there"] else begun["offset"],
        )

    def _pieces(self, transfer: Transfer, offset: int) -> None:
        """Read ahead while pieces are written."""
        self._count(offset)
        offsets = iter(range(offset, transfer.size, PIECE))
        coming = deque((at, self._read(transfer, at)) for at in islice(offsets, AHEAD))
        while coming and not self.stopped.is_set():
            at, future = coming.popleft()
            told = result(future)
            if (told["size"], told["mtime"]) != (transfer.size, transfer.mtime):
                where = f"{transfer.source.name}: {transfer.source_path}"
                raise PlaceError(
                    f"{where} changed while it was copied", hint="wait until it is saved, try again"
                )
            if (following := next(offsets, None)) is not None:
                coming.append((following, self._read(transfer, following)))
            self._write(transfer, at, told["data"])

    def _write(self, transfer: Transfer, offset: int, data: str) -> None:
        after = min(offset + PIECE, transfer.size)
        piece = {"offset": offset, "data": data, "key": transfer.key}
        if result(transfer.target.ask("write", transfer.target_path, **piece)) != after:
            raise PlaceError(f"{transfer.source_path}: a piece came short")
        self._count(after - offset)

    def _read(self, transfer: Transfer, offset: int) -> Future[dict[str, Any]]:
        return transfer.source.ask("read", transfer.source_path, offset=offset, most=PIECE)

    def _count(self, size: int, files_done: int = 0, there: int = 0, resumed: int = 0) -> None:
        with self._lock:
            self.progress.done += size
            self.progress.files_done += files_done
            self.progress.there += there
            self.progress.resumed += resumed


def check_room(transfers: Sequence[Transfer]) -> None:
    """Raise PreflightError naming every place whose disk has no room for what it is to take."""
    by_place: dict[str, list[Transfer]] = {}
    for transfer in transfers:
        by_place.setdefault(transfer.target.name, []).append(transfer)
    small = []
    for name, some in by_place.items():
        directory = str(PurePosixPath(some[0].target_path).parent)
        room = result(some[0].target.ask("room", directory))
        wanted = sum(t.size for t in some) - _there(some)
        if wanted + SPARE > room["free"]:
            small.append(
                f"{name}: {room['path']} has {in_words(room['free'])} free, "
                f"{in_words(wanted)} are to be written there, {in_words(SPARE)} to be left"
            )
    if small:
        raise PreflightError("\n".join(small), hint="make room there, or name another directory")


def _there(transfers: Sequence[Transfer]) -> int:
    """Bytes that the target has already, of whole files and of earlier tries."""
    asked = [
        t.target.ask("begin", t.target_path, size=t.size, mtime=t.mtime, key=t.key)
        for t in transfers
    ]
    return sum(result(future)["offset"] for future in asked)


def in_words(size: int) -> str:
    """A number of bytes for people."""
    value, units = float(size), ["B", "kB", "MB", "GB", "TB", "PB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} B" if units[0] == "B" else f"{value:.1f} {units[0]}"
