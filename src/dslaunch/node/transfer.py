"""Files read and written in pieces, so that an interrupted copy resumes where it stopped.

Every operation names a directory, `path`, and a file below it, `name`. Other users may be able to
write in that directory: links in it are not followed (see beneath.py).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import shutil
import stat
from typing import IO, Any, Dict, Iterator, List, Optional

from dslaunch.node import beneath

Answer = Dict[str, Any]

PIECE = 1 << 20
"""Bytes that are read at a time."""
MOST_PIECE = 16 << 20
"""Bytes that may be asked for at once."""


def read(argument: Answer) -> Answer:
    """Return a piece of a file from `offset`, and the file's size and time, by which a change is
    seen."""
    with os.fdopen(beneath.open_file(argument["path"], argument["name"]), "rb") as file:
        about = os.fstat(file.fileno())
        file.seek(argument["offset"])
        data = file.read(min(argument["most"], MOST_PIECE))
    text = base64.b64encode(data).decode()
    return {"data": text, "size": about.st_size, "mtime": about.st_mtime_ns}


def begin(argument: Answer) -> Answer:
    """Prepare to receive a file; return how much is left of an earlier try with the same `key`.

    `there`: the whole file exists, with this size and time.
    """
    with beneath.parent(argument["path"], argument["name"], make=True) as (directory, name):
        if _is_there(directory, name, argument):
            return {"there": True, "offset": argument["size"]}
        part = _part(name, argument["key"])
        for other in _parts(directory, name):
            if other != part:
                os.unlink(other, dir_fd=directory)
        offset = _size_of_part(directory, part)
        return {"there": False, "offset": min(offset, argument["size"])}


def _is_there(directory: int, name: str, argument: Answer) -> bool:
    try:
        about = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    version = (about.st_size, about.st_mtime_ns)
    return stat.S_ISREG(about.st_mode) and version == (argument["size"], argument["mtime"])


def _size_of_part(directory: int, part: str) -> int:
    """Return the bytes of an earlier try; a file that another user put there is removed."""
    try:
        fd = beneath.open_own(directory, part)
    except FileNotFoundError:
        return 0
    except OSError:
        os.unlink(part, dir_fd=directory)
        return 0
    with os.fdopen(fd, "rb") as file:
        return os.fstat(file.fileno()).st_size


def write(argument: Answer) -> int:
    """Write a piece at `offset` of the incomplete file; return the offset after it."""
    data = base64.b64decode(argument["data"], validate=True)
    with beneath.parent(argument["path"], argument["name"], make=True) as (directory, name):
        fd = _open_part(directory, _part(name, argument["key"]))
    with os.fdopen(fd, "r+b") as file:
        if argument["offset"] > os.fstat(file.fileno()).st_size:
            raise ValueError("an earlier piece is missing")
        file.seek(argument["offset"])
        file.write(data)
        return file.tell()


def _open_part(directory: int, part: str) -> int:
    try:
        return beneath.create(directory, part)
    except FileExistsError:
        return beneath.open_own(directory, part)


def finish(argument: Answer) -> None:
    """Put the file in place if its checksum is `sha256`, with no more rights than `mode` and the
    user's umask give. Raises ValueError if the checksum differs."""
    with beneath.parent(argument["path"], argument["name"], make=True) as (directory, name):
        part = _part(name, argument["key"])
        with os.fdopen(_open_part(directory, part), "r+b") as file:
            if _checksum(file) != argument["sha256"]:
                os.unlink(part, dir_fd=directory)
                raise ValueError("the checksums of the sent and the received file differ")
            os.fchmod(file.fileno(), argument["mode"] & 0o666 & ~_mask())
            os.utime(file.fileno(), ns=(argument["mtime"], argument["mtime"]))
        os.replace(part, name, src_dir_fd=directory, dst_dir_fd=directory)


def _mask() -> int:
    """Return the user's umask. Reading it by setting it would change it for other
    threads."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077


def sha256(argument: Answer) -> str:
    """Return the checksum of a whole file."""
    with os.fdopen(beneath.open_file(argument["path"], argument["name"]), "rb") as file:
        return _checksum(file)


def _checksum(file: IO[bytes]) -> str:
    made = hashlib.sha256()
    while True:
        data = file.read(PIECE)
        if not data:
            return made.hexdigest()
        made.update(data)


def text(argument: Answer) -> None:
    """Write a small file at once, so that a reader sees the old or the new one."""
    parent = beneath.parent(argument["path"], argument["name"], make=True)
    with parent as (directory, name), beneath.replacing(directory, name, mode=0o666) as file:
        file.write(argument["text"].encode())


def room(argument: Answer) -> Answer:
    """Return the free bytes on the disk of `path`, which need not exist yet, and in memory."""
    path = argument["path"]
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return {"free": shutil.disk_usage(path).free, "memory": _memory(), "path": path}


def _memory() -> Optional[int]:
    """Return the available memory in bytes, by /proc/meminfo."""
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def remove(argument: Answer) -> int:
    """Remove the files `names` below `path`, and directories that are empty then; return how many.

    A link is removed, not what it points to. Raises ValueError for a name that leads out of `path`.
    """
    top, count = argument["path"], 0
    emptied = set()
    for name in argument["names"]:
        beneath.components(name)
        with contextlib.suppress(FileNotFoundError), beneath.parent(top, name) as (directory, last):
            os.unlink(last, dir_fd=directory)
            count += 1
        emptied |= set(_above(name))
    for path in sorted(emptied, key=len, reverse=True):
        with contextlib.suppress(OSError), beneath.parent(top, path) as (directory, last):
            os.rmdir(last, dir_fd=directory)
    return count


def _above(name: str) -> Iterator[str]:
    """Yield the directories that a file is in, below the one that is the root."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _part(name: str, key: str) -> str:
    """Return where a file is kept until it is whole: a separate name for each version of the
    source."""
    return f".{name}.{key}{beneath.PART}"


def _parts(directory: int, name: str) -> List[str]:
    """Return the files that earlier tries have left of a file, whatever version they are of."""
    before = f".{name}."
    found = [n for n in os.listdir(directory) if n.startswith(before) and n.endswith(beneath.PART)]
    return [n for n in found if "." not in n[len(before) : -len(beneath.PART)]]
