"""Files read and written in pieces, so that a copy that breaks goes on where it stopped."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
from typing import Any, Dict, Iterator, List, Optional

from dslaunch.node import paths

Answer = Dict[str, Any]

PART = ".dslaunch-part"
"""The end of the name of a file that is not yet whole."""


def read(argument: Answer) -> Answer:
    """A piece of a file from `offset`, and the file's size and time, by which a change is seen."""
    with open(argument["path"], "rb") as file:
        about = os.fstat(file.fileno())
        file.seek(argument["offset"])
        data = file.read(argument["most"])
    text = base64.b64encode(data).decode()
    return {"data": text, "size": about.st_size, "mtime": about.st_mtime_ns}


def begin(argument: Answer) -> Answer:
    """Make ready for a file: how much of it is there from an earlier try with the same `key`.

    `there`: the whole file is, with this size and time.
    """
    path = argument["path"]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    about = _stat(path)
    if about is not None and (about.st_size, about.st_mtime_ns) == (
        argument["size"],
        argument["mtime"],
    ):
        return {"there": True, "offset": argument["size"]}
    part = _part(argument)
    for other in _parts(path):
        if other != part:
            os.unlink(other)
    old = _stat(part)
    return {"there": False, "offset": min(old.st_size, argument["size"]) if old else 0}


def write(argument: Answer) -> int:
    """Put a piece at `offset` of the file that is not yet whole; its new size."""
    data = base64.b64decode(argument["data"])
    fd = os.open(_part(argument), os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(fd, "r+b") as file:
        file.seek(argument["offset"])
        file.write(data)
        return file.tell()


def finish(argument: Answer) -> None:
    """Let the file appear, if it is what `sha256` says. Raises ValueError if not."""
    part = _part(argument)
    if not os.path.exists(part) and argument["size"] == 0:
        write({**argument, "offset": 0, "data": ""})
    found = paths.sha256(part)
    if found != argument["sha256"]:
        os.unlink(part)
        raise ValueError("what arrived is not what was sent: the checksums differ")
    os.utime(part, ns=(argument["mtime"], argument["mtime"]))
    usual = os.umask(0o077)  # there is no other way to ask; meanwhile new files are stricter
    os.umask(usual)
    os.chmod(part, 0o666 & ~usual)
    os.replace(part, argument["path"])


def sha256(argument: Answer) -> str:
    """The checksum of a whole file."""
    return paths.sha256(argument["path"])


def text(argument: Answer) -> None:
    """Write a small file whole, so that a reader sees the old or the new one."""
    path = argument["path"]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}{PART}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(argument["text"])
    os.replace(temporary, path)


def room(argument: Answer) -> Answer:
    """Bytes free for us on the disk of `path`, which may not be there yet, and in memory."""
    path = argument["path"]
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return {"free": shutil.disk_usage(path).free, "memory": _memory(), "path": path}


def _memory() -> Optional[int]:
    """Bytes that programs can still have, by /proc/meminfo."""
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def remove(argument: Answer) -> int:
    """Remove the files `names` below `path`, and directories that are empty then; how many.

    Raises ValueError for a name that leads out of `path`.
    """
    top, count = argument["path"], 0
    above = set()
    for name in argument["names"]:
        path = os.path.normpath(os.path.join(top, name))
        if not path.startswith(f"{top}{os.sep}"):
            raise ValueError(f"{name} is not below {top}")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            count += 1
        above |= set(_above(path, top))
    for directory in sorted(above, key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.rmdir(directory)
    return count


def _above(path: str, top: str) -> Iterator[str]:
    while True:
        path = os.path.dirname(path)
        if len(path) <= len(top):
            return
        yield path


def _part(argument: Answer) -> str:
    """Where a file is kept until it is whole: a name of its own for each version of the source."""
    directory, name = os.path.split(argument["path"])
    return os.path.join(directory, f".{name}.{argument['key']}{PART}")


def _parts(path: str) -> List[str]:
    directory, name = os.path.split(path)
    names = os.listdir(directory)
    return [
        os.path.join(directory, n) for n in names if n.startswith(f".{name}.") and n.endswith(PART)
    ]


def _stat(path: str) -> Optional[os.stat_result]:
    try:
        return os.stat(path)
    except OSError:
        return None
