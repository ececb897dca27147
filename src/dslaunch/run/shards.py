"""Copy a checkpoint's files between nodes and this machine: in pieces, over the connections that
are there, several at once. What was interrupted goes on where it stopped; what arrived is compared
with what was sent by its checksum before it appears."""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any

from dslaunch.errors import ErrorCode, PreflightError
from dslaunch.protocol.checkpoints import Begun, Piece, Room
from dslaunch.run.checkpoint_stores import LONG, CheckpointStore, StoreError, result

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

    source: CheckpointStore
    source_directory: str
    target: CheckpointStore
    target_directory: str
    path: str
    """The file, relative to both directories."""
    size: int
    mtime: int
    """Nanoseconds since the epoch, as the source says; kept."""
    mode: int = 0o600
    """Its mode at the source; the target gives no more rights than that."""

    @property
    def key(self) -> str:
        """Of this version of the file: an earlier try with another key is of no use."""
        return hashlib.sha256(f"{self.size} {self.mtime}".encode()).hexdigest()[:16]

    @property
    def version(self) -> dict[str, Any]:
        """The same, as operations of the target take it."""
        return {"size": self.size, "mtime": self.mtime, "key": self.key}

    def at_source(self, operation: str, **more: Any) -> Future[Any]:
        """Ask the source about the file."""
        return self.source.ask(operation, self.source_directory, name=self.path, **more)

    def at_target(self, operation: str, **more: Any) -> Future[Any]:
        """Ask the target about the file."""
        return self.target.ask(operation, self.target_directory, name=self.path, **more)

    def begin(self) -> Future[Begun]:
        """Have the target made ready."""
        return self.at_target("begin", **self.version)


@dataclass(slots=True)
class CopyProgress:
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


Tell = Callable[[CopyProgress], None]


def copy(
    transfers: Sequence[Transfer],
    tell: Tell = lambda progress: None,
    *,
    piece: int = PIECE,
    spare: int = SPARE,
) -> CopyProgress:
    """Copy all files in pieces of so many bytes; `tell` is called meanwhile, from this thread.

    `spare`: bytes of a disk that are left free.

    Raises PreflightError, before anything is copied, if a disk is too small; StoreError or
    NodeError for the first file that cannot be copied. What was copied until then is of use to
    the next try.
    """
    check_room(transfers, spare)
    work = _Work(piece, CopyProgress(sum(t.size for t in transfers), len(transfers)))
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

    def __init__(self, piece: int, progress: CopyProgress) -> None:
        self.piece, self.progress = piece, progress
        self.stopped = threading.Event()
        self._lock = threading.Lock()

    def one(self, transfer: Transfer) -> None:
        """Copy one file, or what an earlier try has left of it."""
        begun: Begun = result(transfer.begin())
        offset = min(begun.offset, transfer.size)
        if not begun.there:
            checksum = transfer.at_source("sha256")
            self._pieces(transfer, offset)
            if self.stopped.is_set():
                return
            digest = result(checksum, LONG)
            done = {**transfer.version, "mode": transfer.mode, "sha256": digest}
            result(transfer.at_target("finish", **done), LONG)
        self._count(
            transfer.size if begun.there else 0,
            files_done=1,
            there=int(begun.there),
            resumed=0 if begun.there else offset,
        )

    def _pieces(self, transfer: Transfer, offset: int) -> None:
        """Read ahead while pieces are written."""
        self._count(offset)
        offsets = iter(range(offset, transfer.size, self.piece))
        coming = deque((at, self._read(transfer, at)) for at in islice(offsets, AHEAD))
        while coming and not self.stopped.is_set():
            at, future = coming.popleft()
            piece: Piece = result(future)
            where = f"{transfer.source.name}: {transfer.path}"
            if (piece.size, piece.mtime) != (transfer.size, transfer.mtime):
                raise StoreError(
                    f"{where} changed while it was copied", hint="wait until it is saved, try again"
                )
            after = min(at + self.piece, transfer.size)
            if _decoded_size(piece.data) != after - at:
                raise StoreError(f"{where}: the piece at byte {at} has another size than asked for")
            if (following := next(offsets, None)) is not None:
                coming.append((following, self._read(transfer, following)))
            self._write(transfer, at, after, piece.data)

    def _write(self, transfer: Transfer, offset: int, after: int, data: str) -> None:
        piece = {"offset": offset, "data": data, "key": transfer.key}
        if result(transfer.at_target("write", **piece)) != after:
            raise StoreError(f"{transfer.target.name}: {transfer.path}: a piece came short")
        self._count(after - offset)

    def _read(self, transfer: Transfer, offset: int) -> Future[Piece]:
        return transfer.at_source("read", offset=offset, most=self.piece)

    def _count(self, size: int, files_done: int = 0, there: int = 0, resumed: int = 0) -> None:
        with self._lock:
            self.progress.done += size
            self.progress.files_done += files_done
            self.progress.there += there
            self.progress.resumed += resumed


def _decoded_size(data: str) -> int | None:
    """How many bytes base64 stands for; None: it is not base64."""
    try:
        return len(base64.b64decode(data, validate=True))
    except ValueError:
        return None


def check_room(transfers: Sequence[Transfer], spare: int) -> None:
    """Raise PreflightError naming every place whose disk has no room for what it is to take."""
    by_place: dict[str, list[Transfer]] = {}
    for transfer in transfers:
        by_place.setdefault(transfer.target.name, []).append(transfer)
    small = []
    for name, some in by_place.items():
        room: Room = result(some[0].target.ask("room", some[0].target_directory))
        wanted = sum(t.size for t in some) - _there(some)
        if wanted + spare > room.free:
            small.append(
                f"{name}: {room.path} has {in_words(room.free)} free, "
                f"{in_words(wanted)} are to be written there, {in_words(spare)} to be left"
            )
    if small:
        raise PreflightError(
            "\n".join(small),
            hint="make room there, or name another directory",
            code=ErrorCode.DISK_FULL,
        )


def _there(transfers: Sequence[Transfer]) -> int:
    """Bytes that the target has already, of whole files and of earlier tries."""
    asked = [transfer.begin() for transfer in transfers]
    return sum(min(result(f).offset, t.size) for f, t in zip(asked, transfers, strict=True))


def in_words(size: int) -> str:
    """A number of bytes for people."""
    value, units = float(size), ["B", "kB", "MB", "GB", "TB", "PB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} B" if units[0] == "B" else f"{value:.1f} {units[0]}"
