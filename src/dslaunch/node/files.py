"""Files that are sent to a node."""

from __future__ import annotations

import os
import shutil  # not later: at the end of a run the disk with Python may hang
import tempfile

from dslaunch.node import beneath

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    import tarfile
    from typing import IO, Any, Optional

MOST_IN_MEMORY = 32 << 20


class Archive:
    """A tar archive that arrives in pieces, kept in memory, a large one in an unnamed file."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.error: Optional[OSError] = None
        self.file: Any = None

    def add(self, data: bytes) -> None:
        """Add a piece; errors are raised by `unpack`."""
        try:
            self.file = self.file or tempfile.SpooledTemporaryFile(MOST_IN_MEMORY)  # noqa: SIM115 - over many pieces
            self.file.write(data)
        except OSError as error:
            self.error = error

    def unpack(self) -> int:
        """Write the files below `root` and return their number. Raises OSError."""
        if self.error is not None or self.file is None:
            raise self.error or OSError("nothing was sent")
        self.file.seek(0)
        with self.file:
            return unpack(self.file, self.root)


def unpack(archive: IO[bytes], root: str) -> int:
    """Write an archive's files below `root` without following links; return their number.

    Each file appears whole: a process that starts meanwhile reads the old or the new one.
    Raises OSError, and ValueError for a name that is not below `root`.
    """
    import tarfile  # only where files are sent: 5 ms

    count = 0
    with tarfile.open(fileobj=archive) as members:
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
