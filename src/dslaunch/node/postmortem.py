"""A node's evidence about the end of a process: memory and disk space. Never raises."""

from __future__ import annotations

import contextlib
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional

KERNEL_LOG = "/dev/kmsg"
FULL = 1 << 20
"""Free bytes below which a file system counts as full."""


class Postmortem:
    """Compares the state of the node after the end of a process with that before its start."""

    def __init__(self) -> None:
        self._killed = oom_kills()
        self._log = KernelLog()

    def examine(self, pid: int, number: Optional[int], paths: List[str]) -> Dict[str, Any]:
        """Return evidence for a reason: the out-of-memory killer, and which of `paths` are full."""
        found: Dict[str, Any] = {"signal": number, "shm_free": free("/dev/shm")}
        if number == 9:
            now = oom_kills()
            line = self._log.killed(pid)
            if line:
                found["oom"] = line
            elif now is not None and self._killed is not None and now > self._killed:
                found["oom"] = f"its cgroup's oom_kill count went from {self._killed} to {now}"
        full = [path for path in paths if (free(path) or FULL) < FULL]
        if full:
            found["full"] = full
        return found


def oom_kills() -> Optional[int]:
    """Return how many processes of our memory cgroup the kernel has killed (memory.events of cgroup
    v2, memory.oom_control of v1); None where that cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        for line in _read("/proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            for name in _counters(controllers, path):
                text = _read(name)
                found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
                if found:
                    return int(found[1])
    return None


def _counters(controllers: str, path: str) -> List[str]:
    if not controllers:
        return [f"/sys/fs/cgroup{path}/memory.events"]
    if "memory" in controllers.split(","):
        above = "/sys/fs/cgroup/memory"
        return [f"{above}{path}/memory.oom_control", f"{above}/memory.oom_control"]
    return []


class KernelLog:
    """The kernel log's lines about killed processes, where it is readable. Earlier lines are left
    out, since process numbers are reused."""

    def __init__(self) -> None:
        self._said: Dict[int, str] = {}
        self._fd: Optional[int] = None
        with contextlib.suppress(OSError):
            self._fd = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._fd, 0, os.SEEK_END)

    def killed(self, pid: int) -> Optional[str]:
        """Return the kernel's own line about killing this process, if there is one."""
        while True:
            record = self._next()
            if record is None:
                return self._said.get(pid)
            text = record.partition(";")[2].split("\n")[0][:200]
            found = re.search(r"Killed process (\d+) ", text)
            if found:
                self._said[int(found[1])] = text

    def _next(self) -> Optional[str]:
        """Return one record; what was overwritten before it was read, which EPIPE tells, is left
        out."""
        while self._fd is not None:
            try:
                return os.read(self._fd, 8192).decode(errors="replace") or None
            except BrokenPipeError:
                continue
            except OSError:
                break
        return None


def free(path: str) -> Optional[int]:
    """Free bytes for this user where `path` is; None if it is not there."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
