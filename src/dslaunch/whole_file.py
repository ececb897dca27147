"""Files that users name: each appears whole, or is as before."""

from __future__ import annotations

import os
import stat
from pathlib import Path

PRIVATE = 0o600
"""The mode of a file that only this user can read and write."""


def write_whole(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file that appears whole: on a full disk the old one is kept, with its mode.

    What cannot be replaced is written in place. `private`: only this user can read it, also if it
    was there already. Raises OSError.
    """
    if not _is_replaceable(path):
        _write(path, data, os.O_TRUNC, private=private)
        return
    new = path.with_name(f".{os.urandom(8).hex()}.part")
    try:
        _write(new, data, os.O_EXCL, private=private)
        if path.exists() and not private:
            new.chmod(path.stat().st_mode & 0o7777)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _write(path: Path, data: bytes, flags: int, *, private: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, PRIVATE if private else 0o666)
    with os.fdopen(fd, "wb") as file:
        if private and stat.S_ISREG(os.fstat(fd).st_mode):
            os.fchmod(fd, PRIVATE)
        file.write(data)


def _is_replaceable(path: Path) -> bool:
    """Return whether a new file can take the place of this one: not of a device, a pipe, a link or
    another user's file. Raises OSError."""
    if not os.access(path.parent, os.W_OK):
        return False
    try:
        status = path.lstat()
    except FileNotFoundError:
        return True
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
