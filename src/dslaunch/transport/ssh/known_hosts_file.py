"""Add lines to a known_hosts file, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dslaunch.errors import DslaunchError
from dslaunch.transport.ssh.config import LARGEST_KNOWN_HOSTS

TRIES = 5
"""Retries if another program writes the file meanwhile."""


def append(path: Path, lines: Sequence[str]) -> None:
    """Add lines at the end of a known_hosts file, mode 0600 where there was none.

    The new file replaces the old one in one step. A symbolic link is kept: its target is replaced.
    Raises DslaunchError if that is not a file of this user, or cannot be written.
    """
    try:
        real = path.resolve()
        if not real.parent.exists() and real.parent.name == ".ssh":
            real.parent.mkdir(mode=0o700)  # as ssh makes it
        for _ in range(TRIES):
            if _replaced(real, lines):
                return
    except OSError as error:
        raise _cannot(path, error.strerror or str(error)) from None
    raise _cannot(path, "other programs keep writing to it")


def _replaced(path: Path, lines: Sequence[str]) -> bool:
    """Write the file with the new lines; return False if another program wrote it meanwhile.

    Then it is unchanged.
    """
    before = _status(path)
    data = path.read_bytes() if before else b""
    if data and not data.endswith(b"\n"):
        data += b"\n"
    data += "".join(f"{line}\n" for line in lines).encode()
    # others may read it as before; no other user may write it
    mode = stat.S_IMODE(before.st_mode) & ~0o022 if before else 0o600
    descriptor, name = tempfile.mkstemp(prefix=".known_hosts-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        if _seen(_status(path)) != _seen(before):
            return False
        Path(name).replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
    return True


def _seen(status: os.stat_result | None) -> tuple[int, int, int] | None:
    """Return what changes when a file is written."""
    return (status.st_ino, status.st_size, status.st_mtime_ns) if status else None


def _status(path: Path) -> os.stat_result | None:
    """Return a file's status; None if it does not exist. Raises DslaunchError for one that is not
    a regular file of this user."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise _cannot(path, "not a regular file")
    if status.st_uid != os.geteuid():
        raise _cannot(path, "another user owns it")
    if status.st_size > LARGEST_KNOWN_HOSTS:
        raise _cannot(path, f"larger than {LARGEST_KNOWN_HOSTS >> 20} MiB")
    return status


def _cannot(path: Path, why: str) -> DslaunchError:
    hint = "set UserKnownHostsFile in the SSH configuration to another file"
    return DslaunchError(f"cannot record host keys in {path}: {why}", hint=hint)
