"""The node's processes as /proc shows them: which belong to a run, how they ended, signals.

A process belongs to a run because the agent started it or one of its ancestors, or because its
environment has the run's id; never because of its name.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    import signal
    from typing import Callable, Container, Dict, Iterable, Iterator, List, Optional, Set, Tuple
else:
    import _signal as signal  # why not `signal`: see paths.py

RUN_ID = "DSLAUNCH_RUN_ID"
"""The variable that every process of a run carries."""
HOST = "DSLAUNCH_HOST"
"""The node's name: several nodes may be emulated on one machine."""
PROGRAM = "DSLAUNCH_PROGRAM"
"""The variable of dslaunch's own programs: bridges, guardians, agents. Ranks do not have it."""
MOST_ANCESTORS = 10_000
"""Generations between a process and its descendant, at most."""
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Adopt orphans among the descendants, instead of init (Linux >= 3.4)."""
    import ctypes  # only agents need it: 2 ms

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def pids() -> Iterator[int]:
    """Yield all visible processes."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def stat(pid: int) -> Optional[List[str]]:
    """Return the fields of /proc/PID/stat from the state on; None if it is gone.

    Field 0 is the state, 1 the parent, 19 the start time, the last but one the exit code.
    """
    try:
        # not a file object, which costs as much again: agents read thousands of these
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        try:
            return os.read(fd, 4096).rpartition(b")")[2].decode().split()
        finally:
            os.close(fd)
    except OSError:
        return None


def descendants(*roots: int) -> Set[int]:
    """Return all living descendants of some processes, zombies left out."""
    return Descendants(*roots).find()


class Descendants:
    """The descendants of some processes, found again and again.

    Each other process is inspected once: inspecting all takes tens of milliseconds on a busy node.
    (A PID that is reused between two calls would be missed; the kernel uses all others first.)
    """

    def __init__(self, *roots: int) -> None:
        self.roots = roots
        self._others: Set[int] = set()

    def find(self) -> Set[int]:
        """Return those that live now, without the roots and zombies."""
        return {pid for pid, fields in self.stats().items() if fields[0] not in "ZX"}.difference(
            self.roots
        )

    def stats(self) -> Dict[int, List[str]]:
        """Return the fields of `stat` of the roots and of their descendants that are there now."""
        there = set(pids())
        self._others &= there
        children: Dict[int, List[int]] = {}
        seen: Dict[int, List[str]] = {}
        for pid in there - self._others:
            fields = stat(pid)
            if fields is not None:
                seen[pid] = fields
                children.setdefault(int(fields[1]), []).append(pid)
        found = _reachable(self.roots, children).union(self.roots)
        self._others |= seen.keys() - found
        return {pid: fields for pid, fields in seen.items() if pid in found}


def _reachable(roots: Iterable[int], children: Dict[int, List[int]]) -> Set[int]:
    found: Set[int] = set()
    queue = list(roots)
    while queue:
        for child in children.get(queue.pop(), ()):
            found.add(child)
            queue.append(child)
    return found


def has_socket(family: Descendants) -> bool:
    """Return whether a process or a descendant has a socket open; True where that cannot be
    read."""
    return any(map(_opened_socket, family.roots)) or any(map(_opened_socket, family.find()))


def _opened_socket(pid: int) -> bool:
    directory = f"/proc/{pid}/fd"
    try:
        return any(_is_socket(f"{directory}/{fd}") for fd in os.listdir(directory))
    except FileNotFoundError:  # it has ended
        return False
    except OSError:  # it runs as another user, or may not be inspected
        return True


def _is_socket(fd: str) -> bool:
    try:
        return os.readlink(fd).startswith("socket:")
    except OSError:  # closed meanwhile
        return False


def environment(pid: int) -> Dict[bytes, bytes]:
    """Return the environment a process was started with; empty if it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return {}
    return {name: value for name, equals, value in (p.partition(b"=") for p in pairs) if equals}


def signal_mask(pid: int, name: bytes) -> int:
    """Return a mask of signals of /proc/PID/status, such as SigCgt: those with a handler (man 5
    proc); 0 if it cannot be read."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file.read().splitlines())
        return int(lines[name], 16)
    except (OSError, KeyError, ValueError):
        return 0


def tagged(run: str, host: str) -> Set[int]:
    """Return all living processes that are tagged so (`is_tagged`), ourselves left out."""
    return alive(pid for pid in pids() if is_tagged(pid, run, host)) - {os.getpid()}


def is_tagged(pid: int, run: str, host: str) -> bool:
    """Return whether a process of this user carries this run's and this node's name. Any other user
    can give a process such an environment, which root can read."""
    tag = {RUN_ID.encode(): run.encode(), HOST.encode(): host.encode()}
    return tag.items() <= environment(pid).items() and is_ours(pid)


def is_below(pid: int, roots: Container[int]) -> bool:
    """Return whether a process, which may have ended, is one of these or a descendant of one."""
    for _ in range(MOST_ANCESTORS):
        if pid in roots:
            return True
        fields = stat(pid)
        if fields is None:
            return False
        pid = int(fields[1])
    return False


def alive(pids: Iterable[int]) -> Set[int]:
    """Return those of some processes that are there and no zombies."""
    return {pid for pid in pids if (stat(pid) or ["X"])[0] not in "ZX"}


def is_ours(pid: int) -> bool:
    """Return whether a process runs as this user."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False


def send(
    targets: Iterable[int], number: int, is_meant: Callable[[int], bool] = lambda _: True
) -> None:
    """Send a signal to each process; those that have ended meanwhile are ignored.

    `is_meant` is asked again about each process right before: another one may have got its number.
    """
    for pid in targets:
        try:
            _send_to(pid, number, is_meant)
        except (ProcessLookupError, PermissionError):
            continue


def _send_to(pid: int, number: int, is_meant: Callable[[int], bool]) -> None:
    handle = _handle(pid)
    if handle is None:
        if is_meant(pid):
            os.kill(pid, number)
        return
    try:
        if is_meant(pid):
            signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def _handle(pid: int) -> Optional[int]:
    """Return a pidfd, which means the process that has this number now and no later one; None:
    before Python 3.9 or Linux 5.3 there are none. Raises ProcessLookupError."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, as by SIGSTOP."""
    return (stat(pid) or ["X"])[0] == "T"


def resume_programs() -> List[int]:
    """Resume dslaunch's own programs of this user that are stopped; those of past runs then exit by
    themselves. Returns their numbers. Programs in containers are left alone: these are nodes of
    their own."""
    stopped = [pid for pid in pids() if is_stopped(pid) and is_ours(pid)]
    found = [pid for pid in stopped if PROGRAM.encode() in environment(pid) and is_here(pid)]
    resume(found)
    return found


def is_here(pid: int) -> bool:
    """Return whether a process is in our PID namespace, and not in a container that can be seen
    from here (man 7 pid_namespaces)."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def resume(targets: Iterable[int]) -> None:
    """Resume stopped processes, so that a TERM sent to them is delivered."""
    send(targets, signal.SIGCONT)


def wait_status(pid: int) -> Optional[int]:
    """Return the wait status of a process that is dead but not yet collected by its parent.

    Read from /proc/PID/stat, so that the end of another program's child can be told exactly.
    """
    fields = stat(pid)
    if fields is None or fields[0] not in "ZX":
        return None
    # `exit_code` is field 52 of the line, 49 after the name (man 5 proc; Linux >= 3.5)
    return int(fields[49])


def ending(status: int) -> Tuple[Optional[int], Optional[int]]:
    """Split a wait status into exit code and signal; one of the two is None."""
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def ranks_among(pids: Set[int]) -> Dict[int, int]:
    """Return the rank processes among those that a launcher started: local rank -> process.

    Not global rank, which an elastic launcher assigns again each time. A rank is the topmost
    process of its branch with a `RANK` in its environment; what it starts itself, such as data
    loader workers, inherits the variable and is not meant.
    """
    found: Dict[int, int] = {}
    for pid in sorted(pids):
        own = environment(pid)
        rank, local = own.get(b"RANK", b""), own.get(b"LOCAL_RANK", b"")
        parent = int((stat(pid) or ["", "0"])[1])
        if rank.isdigit() and local.isdigit() and environment(parent).get(b"RANK") != rank:
            found.setdefault(int(local), pid)
    return found
