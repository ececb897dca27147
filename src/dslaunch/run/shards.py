"""Copy a checkpoint's files between nodes and this machine, in pieces, over open connections.

Several files are copied at once. An interrupted copy continues where it stopped. The checksum of a
file is compared with the source before the file appears.
"""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future as Work
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice, zip_longest
from typing import Any

from msgspec import Struct, field

from dslaunch.errors import ErrorCode, PreflightError
from dslaunch.plural import byte_count
from dslaunch.protocol.checkpoints import Begun, Piece, Room
from dslaunch.run.checkpoint_stores import LONG, CheckpointStore, StoreError, result
from dslaunch.transport.future import Future

PIECE = 1 << 20
AHEAD = 4
"""Pieces of a file that are asked for before the first of them is written."""
PER_END = 2
AT_ONCE = 32
"""Files that are copied at the same time: with each node, and in all."""
SPARE = 64 << 20
"""Bytes of a disk that are left free."""


class Transfer(Struct, frozen=True):
    """One file to copy to another place."""

    source: CheckpointStore
    source_directory: str
    target: CheckpointStore
    target_directory: str
    path: str
    """The file, relative to both directories."""
    size: int
    mtime: int
    """Nanoseconds since the epoch, at the source; the copy keeps it."""
    mode: int = 0o600
    """Its mode at the source; the copy has no more permissions."""

    @property
    def key(self) -> str:
        """Return the key of this version of the file; partial copies of others are not used."""
        return hashlib.sha256(f"{self.size} {self.mtime}".encode()).hexdigest()[:16]

    @property
    def version(self) -> dict[str, Any]:
        """Return the version as operations of the target expect it."""
        return {"size": self.size, "mtime": self.mtime, "key": self.key}

    def at_source(self, operation: str, **more: Any) -> Future[Any]:
        """Ask the source about the file."""
        return self.source.ask(operation, self.source_directory, name=self.path, **more)

    def at_target(self, operation: str, **more: Any) -> Future[Any]:
        """Ask the target about the file."""
        return self.target.ask(operation, self.target_directory, name=self.path, **more)

    def begin(self) -> Future[Begun]:
        """Prepare the target."""
        return self.at_target("begin", **self.version)


class CopyProgress(Struct):
    """The progress of a copy. Bytes that existed already count as copied."""

    total: int
    files: int
    done: int = 0
    files_done: int = 0
    there: int = 0
    """Files that existed already."""
    resumed: int = 0
    """Bytes that an earlier copy had transferred."""
    began: float = field(default_factory=time.monotonic)


Notify = Callable[[CopyProgress], None]
"""Called with the progress, twice a second."""


def copy(
    transfers: Sequence[Transfer],
    notify: Notify = lambda progress: None,
    *,
    piece: int = PIECE,
    spare: int = SPARE,
) -> CopyProgress:
    """Copy all files in pieces of `piece` bytes; `notify` is called meanwhile, in this thread.

    `spare`: bytes of a disk that are left free.

    Raises PreflightError, before anything is copied, if a disk is too small; StoreError or
    NodeError for the first file that cannot be copied. The next copy uses what was
    copied until then.
    """
    check_free_space(transfers, spare)
    work = _Work(piece, CopyProgress(sum(t.size for t in transfers), len(transfers)))
    ends = max(len({t.source.name for t in transfers}), len({t.target.name for t in transfers}))
    workers = min(AT_ONCE, PER_END * max(1, ends))
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work.one, transfer) for transfer in _in_turns(transfers)]
        try:
            for future in _finished(futures, lambda: notify(work.progress)):
                future.result()
        finally:
            work.stopped.set()
            pool.shutdown(cancel_futures=True)
    notify(work.progress)
    return work.progress


def _finished(futures: list[Work[None]], notify: Callable[[], None]) -> list[Work[None]]:
    """Return the futures when all are done, or the first that failed; call `notify` meanwhile."""
    left = set(futures)
    while left:
        try:
            for future in as_completed(left, timeout=POLL):
                left.discard(future)
                if future.exception() is not None:
                    return [future]
        except TimeoutError:
            notify()
    return futures


POLL = 0.5
"""Seconds between two calls of `notify`."""


def _in_turns(transfers: Sequence[Transfer]) -> list[Transfer]:
    """Return the transfers in an order that keeps all nodes busy."""
    by_ends: dict[tuple[str, str], list[Transfer]] = {}
    for transfer in transfers:
        by_ends.setdefault((transfer.source.name, transfer.target.name), []).append(transfer)
    return [t for turn in zip_longest(*by_ends.values()) for t in turn if t is not None]


class _Work:
    """The state that the copying threads share."""

    def __init__(self, piece: int, progress: CopyProgress) -> None:
        self.piece, self.progress = piece, progress
        self.stopped = threading.Event()
        self._lock = threading.Lock()

    def one(self, transfer: Transfer) -> None:
        """Copy one file, or the rest of it after an earlier copy."""
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
                    f"{where} changed while it was copied",
                    hint="wait until the checkpoint is saved, then try again",
                )
            after = min(at + self.piece, transfer.size)
            if _decoded_size(piece.data) != after - at:
                raise StoreError(
                    f"{where}: the piece at byte {at} does not have the requested size"
                )
            if (following := next(offsets, None)) is not None:
                coming.append((following, self._read(transfer, following)))
            self._write(transfer, at, after, piece.data)

    def _write(self, transfer: Transfer, offset: int, after: int, data: str) -> None:
        piece = {"offset": offset, "data": data, "key": transfer.key}
        if result(transfer.at_target("write", **piece)) != after:
            raise StoreError(
                f"{transfer.target.name}: {transfer.path}: a piece was not written completely"
            )
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
    """Return the decoded size of base64 in bytes; None: it is not base64."""
    try:
        return len(base64.b64decode(data, validate=True))
    except ValueError:
        return None


def check_free_space(transfers: Sequence[Transfer], spare: int) -> None:
    """Raise PreflightError naming every place without enough free disk space."""
    by_place: dict[str, list[Transfer]] = {}
    for transfer in transfers:
        by_place.setdefault(transfer.target.name, []).append(transfer)
    small = []
    for name, some in by_place.items():
        room: Room = result(some[0].target.ask("room", some[0].target_directory))
        wanted = sum(t.size for t in some) - _there(some)
        if wanted + spare > room.free:
            small.append(
                f"{name}: {room.path}: {byte_count(wanted)} to write and {byte_count(spare)} to "
                f"keep free, {byte_count(room.free)} available"
            )
    if small:
        raise PreflightError(
            "\n".join(small),
            hint="free disk space there, or choose another directory",
            code=ErrorCode.DISK_FULL,
        )


def _there(transfers: Sequence[Transfer]) -> int:
    """Return the bytes that the target has already, of whole files and of earlier copies."""
    asked = [transfer.begin() for transfer in transfers]
    return sum(min(result(f).offset, t.size) for f, t in zip(asked, transfers, strict=True))
