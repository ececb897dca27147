"""The node's private directory for a run, and files that are sent to it."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tarfile
import tempfile


def make_node_directory(run: str, host: str) -> str:
    """Make this run's directory: on the node's own disk, for this user alone, removed at the end.

    Raises OSError, also when somebody else owns the directory above it.
    """
    above = _above()
    os.makedirs(above, mode=0o700, exist_ok=True)
    if os.lstat(above).st_uid != os.getuid() or os.path.islink(above):
        raise PermissionError(1, f"{above} belongs to somebody else")
    os.chmod(above, 0o700)
    return tempfile.mkdtemp(prefix=f"{run}.{host}.", dir=above)


def remove_node_directory(run: str, host: str) -> None:
    """Remove this run's directory with all that is in it, and the one above if it was the last."""
    for path in glob.glob(os.path.join(glob.escape(_above()), glob.escape(f"{run}.{host}.") + "*")):
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rmdir(_above())


def _above() -> str:
    return os.path.join(tempfile.gettempdir(), f"dslaunch-{os.getuid()}")


def write_private(path: str, text: str) -> None:
    """Write a file that only this user can read."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)


def unpack(archive: str, root: str) -> int:
    """Put an archive's files below `root`; give their count.

    Each file appears whole: a process that starts meanwhile reads the old or the new one.
    """
    count = 0
    with tarfile.open(archive) as members:
        for member in members:
            path = os.path.join(root, member.name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            source = members.extractfile(member)
            if source is None:
                continue
            temporary = f"{path}.dslaunch-{os.getpid()}"
            with source, open(temporary, "wb") as target:
                shutil.copyfileobj(source, target)
            os.chmod(temporary, member.mode)
            os.utime(temporary, (member.mtime, member.mtime))
            os.replace(temporary, path)
            count += 1
    return count
