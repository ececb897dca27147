"""The node's processes as /proc shows them: which are ours, how they ended, how to end them.

A process is ours because we started it or one of its ancestors, or because its environment
carries the run's id. Never because of its name.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Dict, Iterable, Iterator, List, Optional, Set, Tuple

RUN_ID = "DSLAUNCH_RUN_ID"
"""The variable that every process of a run carries."""
HOST = "DSLAUNCH_HOST"
"""Likewise the node's name: several nodes may be emulated on one machine."""
PROGRAM = "DSLAUNCH_PROGRAM"
"""The variable that our own programs carry: bridges, guardians, agents. Ranks do not."""
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Have the orphans among our descendants become our children, not init's (Linux >= 3.4)."""
    import ctypes  # only the agent needs it, and it takes a preflight long to import

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def pids() -> Iterator[int]:
    """All processes that we can see."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def stat(pid: int) -> Optional[List[str]]:
    """The fields of /proc/PID/stat from the state on; None if it is gone.

    Field 0 is the state, 1 the parent, 19 the start time, the last but one the exit code.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None


def descendants(*roots: int) -> Set[int]:
    """All living descendants of some processes, zombies left out."""
    return Descendants(*roots).find()


class Descendants:
    """The descendants of some processes, found again and again.

    Each other process is looked at once: a full look costs tens of milliseconds on a busy node.
    (A PID that is given anew between two looks would be missed; the kernel gives all others first.)
    """

    def __init__(self, *roots: int) -> None:
        self.roots = roots
        self._others: Set[int] = set()

    def find(self) -> Set[int]:
        """Those that live now, zombies left out."""
        there = set(pids())
        self._others &= there
        children: Dict[int, List[int]] = {}
        dead, seen = set(), set()
        for pid in there - self._others:
            fields = stat(pid)
            if fields is None:
                continue
            seen.add(pid)
            children.setdefault(int(fields[1]), []).append(pid)
            if fields[0] in "ZX":
                dead.add(pid)
        found = _reachable(self.roots, children)
        self._others |= seen.difference(found, self.roots)
        return found - dead


def _reachable(roots: Iterable[int], children: Dict[int, List[int]]) -> Set[int]:
    found: Set[int] = set()
    queue = list(roots)
    while queue:
        for child in children.get(queue.pop(), ()):
            found.add(child)
            queue.append(child)
    return found


def has_socket(family: Descendants) -> bool:
    """Whether a process or a descendant has a socket open; True where that cannot be read."""
    return any(map(_opened_socket, family.roots)) or any(map(_opened_socket, family.find()))


def _opened_socket(pid: int) -> bool:
    directory = f"/proc/{pid}/fd"
    try:
        return any(_is_socket(f"{directory}/{fd}") for fd in os.listdir(directory))
    except FileNotFoundError:  # it has ended
        return False
    except OSError:  # it runs as somebody else, or may not be looked into
        return True


def _is_socket(fd: str) -> bool:
    try:
        return os.readlink(fd).startswith("socket:")
    except OSError:  # closed meanwhile
        return False


def environment(pid: int) -> Dict[bytes, bytes]:
    """The environment a process was started with; empty if it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return {}
    return {name: value for name, equals, value in (p.partition(b"=") for p in pairs) if equals}


def tagged(run: str, host: str) -> Set[int]:
    """All living processes of this user that carry this run's and this node's name, ourselves left
    out. Any other user can give a process such an environment, which root can read."""
    tag = {RUN_ID.encode(): run.encode(), HOST.encode(): host.encode()}
    found = {pid for pid in pids() if tag.items() <= environment(pid).items() and is_ours(pid)}
    return alive(found) - {os.getpid()}


def alive(pids: Iterable[int]) -> Set[int]:
    """Those of some processes that are there and no zombies."""
    return {pid for pid in pids if (stat(pid) or ["X"])[0] not in "ZX"}


def is_ours(pid: int) -> bool:
    """Whether a process runs as this user."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False


def send(targets: Iterable[int], number: int) -> None:
    """Send a signal to each process; those that have gone meanwhile are passed over."""
    for pid in targets:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, as by SIGSTOP."""
    return (stat(pid) or ["X"])[0] == "T"


def resume_programs() -> List[int]:
    """Wake our own programs that are stopped, of all runs of this user: each that has nothing to
    do any more then ends by itself. Returns their numbers."""
    stopped = [pid for pid in pids() if is_stopped(pid) and is_ours(pid)]
    found = [pid for pid in stopped if PROGRAM.encode() in environment(pid)]
    resume(found)
    return found


def resume(targets: Iterable[int]) -> None:
    """Wake stopped processes, so that a TERM sent to them is delivered."""
    send(targets, signal.SIGCONT)


def wait_status(pid: int) -> Optional[int]:
    """The wait status of a process that is dead but not yet collected by its parent.

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
    """The rank processes among those that a launcher started: local rank -> process.

    Not global rank, which an elastic launcher gives anew each time. A rank is the topmost process
    of its branch with a `RANK` in its environment; what it starts itself, such as data loader
    workers, inherits the variable and is not meant.
    """
    found: Dict[int, int] = {}
    for pid in sorted(pids):
        own = environment(pid)
        rank, local = own.get(b"RANK", b""), own.get(b"LOCAL_RANK", b"")
        parent = int((stat(pid) or ["", "0"])[1])
        if rank.isdigit() and local.isdigit() and environment(parent).get(b"RANK") != rank:
            found.setdefault(int(local), pid)
    return found
