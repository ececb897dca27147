"""Locks in files that processes of this node wait for, and which process holds them.

A lock of the kernel is in /proc/locks with the process that took it. A file that is a lock because
it exists, as those of PyTorch's extension builds are, is open in the process that made it.
"""

from __future__ import annotations

import os
import threading

from dslaunch.node import processes, procfs

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Collection, Dict, List, Mapping, Optional, Set, Tuple

LONGEST = 2.0
"""Seconds to find the holders: on a file server that is gone, asking for a file never returns."""
_CALLS = ("flock", "fcntl")


def awaited(pid: int) -> Optional[str]:
    """Return the file whose lock the main thread of a process waits for in a system call."""
    try:
        told = procfs.tell(pid)
    except OSError:
        return None
    return told["on"] or None if told["syscall"] in _CALLS else None


def holders(waiting: Mapping[int, str], timeout: float) -> Dict[str, int]:
    """Return the process that holds each lock, by its file. It is missing if none does, or it is
    unknown, as where a process on another node holds it. `waiting`: files of locks by the processes
    that wait for them."""
    found: Dict[str, int] = {}

    def find() -> None:
        for path in set(waiting.values()):
            pid = _holder(path, waiting)
            if pid is not None:
                found[path] = pid

    finding = threading.Thread(target=find, daemon=True)
    finding.start()
    finding.join(min(timeout, LONGEST))
    return dict(found)


def _holder(path: str, waiting: Collection[int]) -> Optional[int]:
    try:
        real = os.path.realpath(path)
        inode = os.stat(real).st_ino
    except OSError:
        return None
    lockers, blocked = _in_kernel(inode)
    opened = [pid for pid in sorted(processes.pids()) if _has_open(pid, real)]
    others = [pid for pid in opened if pid not in blocked and pid not in waiting]
    # the process that took the lock may have ended, and a child that has it open holds it
    return next((pid for pid in others if pid in lockers), next(iter(others), None))


def _in_kernel(inode: int) -> Tuple[Set[int], Set[int]]:
    """Return the processes that hold a lock on a file with this inode, and those that wait for one
    (man 5 proc, /proc/locks). A lock may also be on a file of another file system."""
    lockers: Set[int] = set()
    blocked: Set[int] = set()
    for line in procfs.read("/proc/locks").splitlines():
        words = line.split()
        waits = words[1:2] == ["->"]
        # without the arrow: number, kind, mode, access, process, device:inode, start, end
        fields = [word for word in words if word != "->"]
        if len(fields) < 6 or fields[5].rpartition(":")[2] != str(inode):
            continue
        (blocked if waits else lockers).add(int(fields[4]))
    return lockers, blocked


def _has_open(pid: int, path: str) -> bool:
    """Return whether a process has a file open; False: of a process of another user, it is not
    known."""
    directory = f"/proc/{pid}/fd"
    try:
        descriptors: List[str] = os.listdir(directory)
    except OSError:
        return False
    return any(procfs.link(f"{directory}/{descriptor}") == path for descriptor in descriptors)
