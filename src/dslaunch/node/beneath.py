"""Files below a directory in which other users may write: reached without following a link.

The directory itself is named by the user and may be, or lie behind, a symbolic link. Below it every
component is opened by its name in the directory before it, so that no other user can replace a
component by a link, or by another directory, between two steps.

For directories of ours, in which no other user can write, see `private`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from dslaunch.node.private import UNMAPPED_USER

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import IO, Iterator, List, Tuple

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Not blocking: to open a named pipe would wait for its writer."""
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PART = ".dslaunch-part"
"""The end of the name of a file that is not yet whole."""
IS_LINK = "is a symbolic link, which is not followed: replace it by what it points to"
NOT_A_FILE = "is not a regular file"


def components(path: str) -> List[str]:
    """Return the names that a relative path consists of.

    Raises ValueError for a path that is absolute, not normalized or leads out of its directory.
    """
    names = path.split("/")
    if "\0" in path or any(name in ("", ".", "..") for name in names):
        raise ValueError(f"{path!r} is not below the directory")
    return names


@contextlib.contextmanager
def opened(root: str, directory: str = "", *, make: bool = False) -> Iterator[int]:
    """Open a directory below `root`, with `make` after creating what is missing; empty: `root`.

    Raises OSError, also for a link in the path, and ValueError as `components` does.
    """
    names = components(directory) if directory else []
    if make:
        os.makedirs(root, exist_ok=True)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            following = _enter(fd, name, make=make)
            os.close(fd)
            fd = following
        yield fd
    finally:
        os.close(fd)


def _enter(fd: int, name: str, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=fd)
    try:
        return os.open(name, _DIRECTORY, dir_fd=fd)
    except OSError as error:
        raise _explained(error, fd, name) from None


@contextlib.contextmanager
def parent(root: str, path: str, *, make: bool = False) -> Iterator[Tuple[int, str]]:
    """Open the directory of a file below `root`; give it and the file's name in it."""
    directory, _, name = path.rpartition("/")
    components(name)
    with opened(root, directory, make=make) as fd:
        yield fd, name


def open_file(root: str, path: str) -> int:
    """Open a regular file below `root` for reading. Raises OSError, ValueError."""
    with parent(root, path) as (directory, name):
        return open_name(directory, name)


def open_name(directory: int, name: str) -> int:
    """Open a regular file of an open directory for reading. Raises OSError."""
    try:
        fd = os.open(name, _READ, dir_fd=directory)
    except OSError as error:
        raise _explained(error, directory, name) from None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, f"{name!r} {NOT_A_FILE}")


def create(directory: int, name: str, mode: int = 0o600) -> int:
    """Create a file of an open directory for writing. Raises FileExistsError, OSError."""
    return os.open(name, _CREATE, mode, dir_fd=directory)


@contextlib.contextmanager
def replacing(directory: int, name: str, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """Write a file of an open directory: it appears whole, and only if the block succeeds.

    Another process reads the old file or the new one. Raises OSError.
    """
    # without the file's name in it, which may be as long as a name can be
    temporary = f".{os.urandom(8).hex()}{PART}"
    fd = create(directory, temporary, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise


def open_own(directory: int, name: str) -> int:
    """Open a file that we created earlier, to continue it.

    Raises PermissionError for one that another user put there, or that has another name too.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=directory)
    except OSError as error:
        raise _explained(error, directory, name) from None
    about = os.fstat(fd)
    if stat.S_ISREG(about.st_mode) and about.st_nlink == 1 and _is_ours(about.st_uid):
        return fd
    os.close(fd)
    raise PermissionError(errno.EPERM, f"{name!r} was put there by another user")


def _is_ours(uid: int) -> bool:
    ours = os.geteuid()
    return uid == ours or (ours == 0 and uid == UNMAPPED_USER)


def _explained(error: OSError, directory: int, name: str) -> OSError:
    """Return an error that names a link as the reason; the kernel reports ELOOP or ENOTDIR."""
    with contextlib.suppress(OSError):
        if stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            return OSError(errno.ELOOP, f"{name!r} {IS_LINK}")
    return error
