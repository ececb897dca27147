"""Directories and files that belong to this user alone.

Our directories lie where other users can make entries too: in /tmp, /var/tmp and /dev/shm.
Everything that is read, written, connected to or removed there is opened by this module.

- A directory is ours if it is a directory and no symbolic link, we own it, and its mode gives
  nothing to group and others.
- A file is ours if it is a regular file and no symbolic link, and we own it.

For directories that the user names, in which others may be allowed to write, see `beneath`.

Both are checked on the open descriptor, since a name can be given to something else between a
check by name and its use. Nothing here waits: a FIFO is opened without blocking and refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Callable, Iterator, Optional

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_OTHERS = 0o077
"""What group and others may do."""
MOST_KEPT = 1 << 20
"""Bytes that are kept for a full disk, about."""
UNMAPPED_USER = 65534
"""The owner of a file whose real one has no number here (Linux: the overflow user): of root's files
where a user namespace knows only this user, and of what root creates on a network file system that
trusts no root."""


def open_directory(path: str, within: Optional[int] = None) -> int:
    """Open a directory of ours; `within` is the descriptor that a relative path starts at.

    Raises OSError, for a directory that is not ours a PermissionError.
    """
    fd = os.open(path, _DIRECTORY, dir_fd=within)
    about = os.fstat(fd)
    if about.st_uid == os.geteuid() and not about.st_mode & _OTHERS:
        return fd
    os.close(fd)
    raise PermissionError(1, "others own it or have access to it", path)


@contextlib.contextmanager
def opened(path: str, within: Optional[int] = None) -> Iterator[int]:
    """Open a directory of ours for as long as the block lasts. Raises OSError."""
    fd = open_directory(path, within)
    try:
        yield fd
    finally:
        os.close(fd)


def is_ours(path: str) -> bool:
    """Return whether a path is a directory of ours."""
    try:
        os.close(open_directory(path))
    except OSError:
        return False
    return True


def make_directory(path: str) -> None:
    """Make a directory of ours, with the missing ones above it, whatever the umask is.

    One that we own already is closed to others. Raises OSError.
    """
    above = os.path.dirname(path)
    if above and not os.path.isdir(above):
        make_directory(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    fd = os.open(path, _DIRECTORY)
    try:
        about = os.fstat(fd)
        if about.st_uid == os.geteuid() and about.st_mode & _OTHERS:
            os.fchmod(fd, 0o700)
    finally:
        os.close(fd)
    # checked again: some file systems ignore modes
    os.close(open_directory(path))


def check_parent(above: str) -> None:
    """Raise PermissionError for a directory in which another user could replace what we make."""
    about = os.stat(above)
    if about.st_uid not in (0, os.geteuid(), UNMAPPED_USER):
        raise PermissionError(1, "another user owns it", above)
    if about.st_mode & 0o022 and not about.st_mode & stat.S_ISVTX:
        raise PermissionError(1, "others can replace what is in it (no sticky bit)", above)


def open_file(name: str, flags: int, within: Optional[int] = None) -> int:
    """Open a file of ours, made with mode 0600 if `flags` ask for it. Raises OSError."""
    fd = os.open(name, flags | _FILE, 0o600, dir_fd=within)
    about = os.fstat(fd)
    if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid():
        return fd
    os.close(fd)
    raise PermissionError(1, "it is not a regular file of this user", name)


def read(name: str, within: int, most: int) -> bytes:
    """Read at most `most` bytes of a file of ours. Raises OSError."""
    with os.fdopen(open_file(name, os.O_RDONLY, within), "rb") as file:
        return file.read(most)


def write(name: str, text: str, within: int) -> None:
    """Write a whole file that only this user can read. Raises OSError."""
    fd = open_file(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, within)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)


def append(name: str, data: bytes, within: int) -> None:
    """Append to a file that only this user can read, as `append_whole` does. Raises OSError."""
    fd = open_file(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, within)
    try:
        append_whole(fd, data)
    finally:
        os.close(fd)


def append_whole(fd: int, data: bytes) -> None:
    """Append all of the data to an open file, or nothing on a full disk: what follows, once there
    is space again, must not be taken for the rest of it. Raises OSError."""
    written = os.write(fd, data)
    if written < len(data):
        take_back(fd, written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Appender:
    """Appends to a file. What a full disk has no space for is kept, up to a limit, and appended
    before what follows."""

    def __init__(self, append: Callable[[bytes], object]) -> None:
        """`append`: appends all of the data, or raises OSError."""
        self._append = append
        self._kept = b""

    def add(self, data: bytes) -> None:
        """Append data, and what is kept before it. Raises OSError for a full disk."""
        if len(self._kept) <= MOST_KEPT:
            self._kept += data
        self.retry()

    def retry(self) -> None:
        """Append what is kept. Raises OSError if there is still no space."""
        if self._kept:
            self._append(self._kept)
            self._kept = b""


def take_back(fd: int, size: int) -> None:
    """Remove the last bytes of an open file. Raises OSError."""
    os.ftruncate(fd, os.fstat(fd).st_size - size)


def remove_tree(name: str, within: int) -> None:
    """Remove a directory with all that is in it; what cannot be removed stays."""
    # through the descriptor: rmtree takes one from Python 3.11 on only
    shutil.rmtree(f"/proc/self/fd/{within}/{name}", ignore_errors=True)
