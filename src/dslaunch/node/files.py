"""Files that are sent to a node."""

from __future__ import annotations

import hashlib
import io
import os
import shutil  # not later: at the end of a run the disk with Python may hang
import tempfile
import threading

from dslaunch.node import beneath

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    import tarfile
    from typing import IO, Any, List, Optional

MOST_IN_MEMORY = 32 << 20
AT_ONCE = 256 * 1024
"""Bytes that are unpacked at a time."""


class InvalidPieceError(ValueError):
    """A piece of an archive is not the one that the launcher has announced."""


class Archive:
    """A tar archive that arrives in pieces, kept in memory, a large one in an unnamed file.

    The launcher announces the SHA-256 of every piece over its own connection. The pieces may then
    come from any other node: what is not the next piece is not kept.
    """

    def __init__(self, root: str, digests: List[str]) -> None:
        self.root = root
        self.digests = digests
        """SHA-256 of the pieces, hexadecimal, in their order."""
        self.error: Optional[OSError] = None
        """Why it cannot be kept."""
        self._ends: List[int] = []
        """Where each piece that has arrived ends."""
        self._file: Any = tempfile.SpooledTemporaryFile(MOST_IN_MEMORY)  # noqa: SIM115 - over many pieces
        self._changed = threading.Condition()

    @property
    def received(self) -> int:
        """How many pieces have arrived."""
        return len(self._ends)

    @property
    def whole(self) -> bool:
        """Whether all pieces have arrived."""
        return len(self._ends) == len(self.digests)

    @property
    def size(self) -> int:
        """Bytes that have arrived."""
        return self._ends[-1] if self._ends else 0

    def add(self, data: bytes) -> None:
        """Add the next piece; one that is there already is left out. Raises InvalidPieceError.

        Errors of the disk are kept in `error`.
        """
        digest = hashlib.sha256(data).hexdigest()
        if self.whole or digest != self.digests[self.received]:
            if digest in self.digests[: self.received]:
                return
            raise InvalidPieceError("a piece of the archive has another checksum than announced")
        with self._changed:
            if self.error is None:
                try:
                    self._file.seek(self.size)
                    self._file.write(data)
                    self._ends.append(self.size + len(data))
                except OSError as error:
                    self.error = error
            self._changed.notify_all()

    def close(self) -> None:
        """Free what is kept, and end what waits for a further piece. Safe to call twice."""
        with self._changed:
            self.error = self.error or ConnectionAbortedError("no longer needed")
            self._file.close()
            self._changed.notify_all()

    def piece(self, number: int) -> bytes:
        """Return a piece, and wait for it if it has not arrived. Raises OSError."""
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None or number < self.received)
            if self.error is not None:
                raise self.error
            begin = self._ends[number - 1] if number else 0
            return self.read(begin, self._ends[number] - begin)

    def read(self, offset: int, most: int) -> bytes:
        """Return bytes of what has arrived. Raises OSError."""
        with self._changed:  # several threads read it, each at another place
            if self.error is not None:
                raise self.error
            self._file.seek(offset)
            data: bytes = self._file.read(most)
            return data

    def unpack(self) -> int:
        """Write the files below `root` and return their number. Raises OSError."""
        return unpack(io.BufferedReader(_ArchiveReader(self), AT_ONCE), self.root)


class _ArchiveReader(io.RawIOBase):
    """Reads an archive from its beginning, while other threads read it elsewhere."""

    def __init__(self, archive: Archive) -> None:
        super().__init__()
        self._archive, self._offset = archive, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._archive.read(self._offset, len(buffer))
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)


def unpack(archive: IO[bytes], root: str) -> int:
    """Write an archive's files below `root` without following links; return their number.

    Each file appears whole: a process that starts meanwhile reads the old or the new one.
    Raises OSError, and ValueError for a name that is not below `root`.
    """
    import tarfile  # only where files are sent: 5 ms

    count = 0
    with tarfile.open(fileobj=archive, mode="r|*", bufsize=AT_ONCE) as members:
        for member in members:
            source = members.extractfile(member) if member.isreg() else None
            if source is None:
                raise ValueError(f"{member.name!r} is not a regular file")
            with source, beneath.parent(root, member.name, make=True) as (directory, name):
                _put(source, directory, name, member)
            count += 1
    return count


def _put(source: IO[bytes], directory: int, name: str, member: tarfile.TarInfo) -> None:
    """Write one file of an archive into an open directory."""
    with beneath.replacing(directory, name) as target:
        shutil.copyfileobj(source, target)
        # before the time is set, which a later write would change
        target.flush()
        os.fchmod(target.fileno(), member.mode & 0o777)
        os.utime(target.fileno(), (member.mtime, member.mtime))
