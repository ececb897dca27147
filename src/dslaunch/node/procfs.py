"""What /proc shows of a process that works or waits."""

from __future__ import annotations

import contextlib
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Set, Tuple

PYTHON = re.compile(r"python|pypy")
_X86_64 = """
    0 read, 1 write, 7 poll, 16 ioctl, 17 pread64, 23 select, 35 nanosleep, 42 connect, 43 accept,
    45 recvfrom, 47 recvmsg, 61 wait4, 72 fcntl, 73 flock, 74 fsync, 202 futex, 217 getdents64,
    230 clock_nanosleep, 232 epoll_wait, 247 waitid, 257 openat, 262 newfstatat, 270 pselect6,
    271 ppoll, 281 epoll_pwait, 288 accept4, 332 statx
"""
_AARCH64 = """
    22 epoll_pwait, 25 fcntl, 29 ioctl, 32 flock, 56 openat, 61 getdents64, 63 read, 64 write,
    67 pread64, 72 pselect6, 73 ppoll, 79 newfstatat, 82 fsync, 95 waitid, 98 futex, 101 nanosleep,
    115 clock_nanosleep, 202 accept, 203 connect, 207 recvfrom, 212 recvmsg, 242 accept4, 260 wait4,
    291 statx
"""
_WITH_FILE = {
    "accept",
    "accept4",
    "connect",
    "fcntl",
    "flock",
    "fsync",
    "getdents64",
    "ioctl",
    "pread64",
    "read",
    "recvfrom",
    "recvmsg",
    "write",
}
"""The system calls whose first argument is the file descriptor that they wait for."""


def _by_number(table: str) -> Dict[str, str]:
    """Return names by number, both as text, of a table `NUMBER NAME, NUMBER NAME, ...`."""
    found = {}
    for entry in table.split(","):
        number, name = entry.split()
        found[number] = name
    return found


_SYSCALLS = {"x86_64": _by_number(_X86_64), "aarch64": _by_number(_AARCH64)}
"""The system calls that a process waits in, by architecture and the kernel's number."""


def tell(pid: int) -> Dict[str, Any]:
    """Return what can be known of any process. Raises OSError if it has ended."""
    state = status(str(pid))["State"][:1]
    if state in "ZX":
        raise ProcessLookupError
    number, _, arguments = read(f"/proc/{pid}/syscall").partition(" ")
    # a running process shows "running", one that is stopped outside of a call "-1"
    names = _SYSCALLS.get(os.uname().machine, {})
    call = names.get(number, number) if number.isdigit() else ""
    first = arguments.partition(" ")[0]
    on = printable(link(f"/proc/{pid}/fd/{int(first, 16)}")) if call in _WITH_FILE else ""
    return {
        "pid": pid,
        "command": command(read(f"/proc/{pid}/cmdline").split("\0")),
        "state": state,
        "wchan": read(f"/proc/{pid}/wchan").strip("0"),
        "syscall": call,
        "on": on,
        "stack": re.findall(r"\] (\w+)\+", read(f"/proc/{pid}/stack")),
    }


def running_threads(pid: int) -> Set[str]:
    """Return the threads of a process that run or could run; none if it has ended."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return set()
    return {each for each in threads if _is_running(f"/proc/{pid}/task/{each}/stat")}


def _is_running(path: str) -> bool:
    # the name of the thread, in parentheses, may have any characters
    return read(path).rpartition(") ")[2][:1] == "R"


def command(words: List[str]) -> str:
    """Return a command in short: the program, and a Python's script; its arguments may be
    private."""
    program = os.path.basename(words[0])
    if not PYTHON.match(program):
        return program
    rest = iter(words[1:])
    for word in rest:
        if word == "-c":
            return f"{program} -c"
        if word == "-m":
            return f"{program} -m {next(rest, '')}"
        if word in ("-X", "-W"):
            next(rest, None)
        elif not word.startswith("-"):
            return f"{program} {os.path.basename(word)}"
    return program


def read(path: str) -> str:
    """Return the content of a file of /proc; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip("\0\n")
    except OSError:
        return ""


def scheduled(pid: int) -> Tuple[float, float]:
    """Return the seconds that the main thread of a process ran, and waited for a CPU (Linux,
    Documentation/scheduler/sched-stats.rst); zeros where the kernel does not count them."""
    words = read(f"/proc/{pid}/schedstat").split()
    if len(words) != 3:
        return 0.0, 0.0
    return int(words[0]) / 1e9, int(words[1]) / 1e9


def link(path: str) -> str:
    """Return the target of a link of /proc; empty if it cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def printable(name: str) -> str:
    """Return the name of a file as valid Unicode: the bytes of one may be anything."""
    return name.encode("utf-8", "replace").decode("utf-8")


def status(pid: str) -> Dict[str, str]:
    """Return the fields of /proc/PID/status. Raises OSError."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        pairs = (line.partition(":") for line in file)
        return {name: value.strip() for name, _, value in pairs}


def includes(mask: str, number: int) -> bool:
    """Return whether a signal is in a set of signals of /proc/PID/status."""
    return bool(int(mask, 16) >> (number - 1) & 1)


def not_accepting(pid: int, number: int) -> Set[int]:
    """Return the threads of a process that do not accept a signal now, such as one that handles it.

    Raises OSError if the process is gone.
    """
    found = set()
    for tid in map(int, os.listdir(f"/proc/{pid}/task")):
        with contextlib.suppress(OSError):
            masks = status(f"{pid}/task/{tid}")
            if any(includes(masks[mask], number) for mask in ("SigBlk", "SigPnd", "ShdPnd")):
                found.add(tid)
    return found
