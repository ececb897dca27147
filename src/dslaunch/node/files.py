"""The node's private directory for a run, and files that are sent to it."""

from __future__ import annotations

import contextlib
import os
import shutil  # here: at the end the disk that Python is on may be the one that hangs
import tempfile

from dslaunch.node import keeping

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import IO, Any, List, Optional, Tuple


def make_node_directory(run: str, host: str, places: List[str]) -> str:
    """Make this run's directory in the first of `places` that can hold one, for this user alone.

    Raises OSError with every reason if none can.
    """
    reasons = []
    for place in places:
        try:
            return _make(run, host, place)
        except OSError as error:
            reasons.append(f"{place}: {error.strerror}")
    raise OSError(f"no directory for the run: {'; '.join(reasons)}")


def _make(run: str, host: str, place: str) -> str:
    os.makedirs(place, mode=0o700, exist_ok=True)
    if os.lstat(place).st_uid != os.getuid() or os.path.islink(place):
        raise PermissionError(1, "it belongs to somebody else")
    os.chmod(place, 0o700)
    return tempfile.mkdtemp(prefix=f"{run}.{host}.", dir=place)


def temporary_places() -> List[str]:
    """Where a run's directory may be while it lasts: the node's own disk, else its memory."""
    name = f"dslaunch-{os.getuid()}"
    return [os.path.join(above, name) for above in (tempfile.gettempdir(), "/var/tmp", "/dev/shm")]


def lasting_place(home: str) -> str:
    """Where a run that nobody watches keeps what it says."""
    return os.path.join(home, keeping.DETACHED)


def all_places(home: str) -> List[str]:
    """Wherever runs may have left directories."""
    return [*temporary_places(), lasting_place(home)]


def remove_node_directories(run: str, host: str, home: str, *, lasting: bool = False) -> None:
    """Remove this run's directories with all that is in them, and an empty one above.

    What a detached run has kept stays, unless `lasting`.
    """
    for place in all_places(home):
        for path in keeping.directories([place], host):
            if os.path.basename(path).startswith(f"{run}.{host}."):
                _remove(path, keep=place == lasting_place(home) and not lasting)
        with contextlib.suppress(OSError):
            os.rmdir(place)


def _remove(path: str, *, keep: bool) -> None:
    if not keep:
        shutil.rmtree(path, ignore_errors=True)
        return
    kept = {keeping.ABOUT, keeping.EVENTS, keeping.JOURNAL, keeping.LOCK, keeping.CRASH}
    with contextlib.suppress(OSError):
        for name in set(os.listdir(path)) - kept:
            inside = os.path.join(path, name)
            if os.path.isdir(inside) and not os.path.islink(inside):
                shutil.rmtree(inside, ignore_errors=True)
            else:
                os.unlink(inside)


def write_private(path: str, text: str) -> None:
    """Write a file that only this user can read."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)


def read_piece(path: str, position: int, most: int) -> Tuple[bytes, int]:
    """A piece of a file, and the file's size. Raises OSError."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(position)
        return file.read(most), size


MOST_IN_MEMORY = 32 << 20


class Archive:
    """A tar archive that comes in pieces, kept in memory, a large one in an unnamed file."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.error: Optional[OSError] = None
        self.file: Any = None

    def add(self, data: bytes) -> None:
        """Add a piece; what goes wrong is told by `unpack`."""
        try:
            self.file = self.file or tempfile.SpooledTemporaryFile(MOST_IN_MEMORY)  # noqa: SIM115 - over many pieces
            self.file.write(data)
        except OSError as error:
            self.error = error

    def unpack(self) -> int:
        """Put the files below `root`; give their count. Raises OSError."""
        if self.error is not None or self.file is None:
            raise self.error or OSError("nothing was sent")
        self.file.seek(0)
        with self.file:
            return unpack(self.file, self.root)


def unpack(archive: IO[bytes], root: str) -> int:
    """Put an archive's files below `root`; give their count.

    Each file appears whole: a process that starts meanwhile reads the old or the new one.
    """
    import tarfile

    count = 0
    with tarfile.open(fileobj=archive) as members:
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
