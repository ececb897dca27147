"""The collectives of the ranks, as their own processes record them: see `hook_collectives.py`.

Every rank that has initialized a process group listens in the run's directory. All are asked at
once; one that does not answer in time, because it is stopped or a thread of it holds the
interpreter, is named as such.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import stat
import struct
import time

from dslaunch.node import file_locks, own_work, private, processes, procfs
from dslaunch.node.hook_collectives import LONGEST, PREFIX, WHAT

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional

ANSWERED, SILENT, ABSENT = "answered", "silent", "absent"
"""How a rank's process answered; `absent`: it does not listen (yet)."""
MOST_BYTES = 8 << 20
"""Of all answers of a node; a message has at most 16 MiB."""
MOST_PATH, MOST_COMMAND = 4096, 200
"""Characters of the file of a lock, and of the command that holds it."""
_PIECE = 64 * 1024
_CREDENTIALS = struct.Struct("3i")


class _Asked:
    """A connection to a process that has been asked."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection, self.pid = connection, pid
        self.data = b""
        self.over = False


def collect(
    pids: Dict[int, int], directory: str, what: str, timeout: float, since: float = 0.0
) -> Dict[str, Dict[str, Any]]:
    """Return how every rank answered, within `timeout` seconds. Raises OSError if the directory is
    not ours, ValueError if there is no such question.

    `pids` is rank -> process; `what`: see `hook_collectives.answer`, and `hook_collectives.times`,
    which has only collectives after `since`. Of each rank: `state`, `pid`
    (the process that answered, the rank's own or one below it), `waited` (the seconds for which its
    main thread has waited for a CPU), `transferred` and, while it compiles, `compiled` (see
    `own_work.RankWork`), and if it answered `told`; for `full` also `lock`, the lock in a file that
    it waits for: `file`, and of the process that holds it `pid`, `command` and `rank`, where they
    are known.
    """
    if what not in WHAT:
        raise ValueError(f"no such question: {what}")
    deadline = time.monotonic() + timeout
    asked = _connect_to_all(directory)
    try:
        _converse(asked, f"{what} {since!r}\n".encode(), deadline)
    finally:
        for each in asked:
            each.connection.close()
    owners = _owners(pids, [each.pid for each in asked])
    found: Dict[str, Dict[str, Any]] = {
        str(rank): {"state": ABSENT, "pid": pid} for rank, pid in pids.items()
    }
    room = MOST_BYTES
    for each in asked:
        rank = owners.get(each.pid)
        if rank is None:
            continue
        told = _parsed(each) if len(each.data) <= room else None
        room -= len(each.data) if told is not None else 0
        before = found[str(rank)]
        if told is not None:
            found[str(rank)] = {"state": ANSWERED, "pid": each.pid, "told": told}
        elif before["state"] == ABSENT:
            found[str(rank)] = {"state": SILENT, "pid": each.pid}
    for answer in found.values():
        _, answer["waited"] = procfs.scheduled(answer["pid"])
        answer["transferred"] = own_work.transferred(answer["pid"])
    _add_compiled(found, pids, deadline - time.monotonic())
    if what == "full":
        _add_locks(found, pids, deadline - time.monotonic())
    return found


def _add_compiled(found: Dict[str, Dict[str, Any]], pids: Dict[int, int], timeout: float) -> None:
    """Add what ranks compile, or wait for while another job on the node builds it."""
    compiling = {rank: pid for rank, pid in pids.items() if _compiles(found[str(rank)])}
    for rank, seconds in _cpu_seconds(compiling).items():
        found[str(rank)]["compiled"] = seconds
    for rank, seconds in _cpu_seconds(_builders(found, compiling, timeout)).items():
        found[str(rank)]["compiled"] += seconds


def _builders(
    found: Dict[str, Dict[str, Any]], compiling: Dict[int, int], timeout: float
) -> Dict[int, int]:
    """Return the processes that hold the locks of builds that ranks wait for."""
    told = {rank: _told_lock(found[str(rank)]) for rank in compiling}
    files = {rank: file for rank, file in told.items() if file is not None}
    if not files:
        return {}
    waiting = {found[str(rank)]["pid"]: file for rank, file in files.items()}
    holders = file_locks.holders(waiting, timeout)
    return {rank: holders[file] for rank, file in files.items() if file in holders}


def _add_locks(found: Dict[str, Dict[str, Any]], pids: Dict[int, int], timeout: float) -> None:
    """Add the locks in files that ranks wait for, with the processes that hold them."""
    known = {rank: _lock_of(found[str(rank)]) for rank in pids}
    files = {rank: file for rank, file in known.items() if file is not None}
    if not files:
        return
    waiting = {found[str(rank)]["pid"]: file for rank, file in files.items()}
    holders = file_locks.holders(waiting, timeout)
    owners = _owners(pids, list(holders.values()))
    for rank, file in files.items():
        lock: Dict[str, Any] = {"file": procfs.printable(file)[:MOST_PATH]}
        pid = holders.get(file)
        if pid is not None:
            words = procfs.read(f"/proc/{pid}/cmdline").split("\0")
            command = procfs.command(words)[:MOST_COMMAND]
            lock.update(pid=pid, command=command, rank=owners.get(pid))
        found[str(rank)]["lock"] = lock


def _lock_of(answer: Dict[str, Any]) -> Optional[str]:
    """Return the file whose lock a rank waits for, by what its own process says, or by its system
    call."""
    return _told_lock(answer) or file_locks.awaited(answer["pid"])


def _told_lock(answer: Dict[str, Any]) -> Optional[str]:
    """Return the file whose lock a rank waits for, by what its own process says."""
    told = (answer.get("told") or {}).get("lock")
    is_path = isinstance(told, str) and told.startswith("/") and "\0" not in told
    return told if is_path else None


def _compiles(answer: Dict[str, Any]) -> bool:
    """Return whether a rank compiles, by what its own process says."""
    return (answer.get("told") or {}).get("compiles") is True


def _cpu_seconds(pids: Dict[int, int]) -> Dict[int, float]:
    """Return the CPU time of all processes of some ranks, by rank."""
    if not pids:
        return {}
    stats = processes.Descendants(*pids.values()).stats()
    found = dict.fromkeys(pids, 0.0)
    for pid, rank in _owners(pids, list(stats)).items():
        found[rank] += own_work.cpu_seconds(stats[pid])
    return found


def _connect_to_all(directory: str) -> List[_Asked]:
    """Return connections to all processes that listen; sockets of those that ended are removed."""
    asked = []
    with private.opened(directory) as within:
        for name in sorted(os.listdir(within)):
            if name.startswith(PREFIX) and _is_socket(name, within):
                each = _connect(name, within)
                if each is not None:
                    asked.append(each)
    return asked


def _is_socket(name: str, within: int) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(name, dir_fd=within).st_mode)
    except FileNotFoundError:  # another question meanwhile found that its process has ended
        return False


def _connect(name: str, within: int) -> Optional[_Asked]:
    connection = socket.socket(socket.AF_UNIX)
    connection.setblocking(False)
    try:
        connection.connect(f"/proc/self/fd/{within}/{name}")
        about = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, user, _ = _CREDENTIALS.unpack(about)
        if user == os.geteuid():
            return _Asked(connection, pid)
    except ConnectionRefusedError:  # its process has ended
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=within)
    except BlockingIOError:  # it has accepted none of the last connections
        pid = _pid_in(name)
        if pid is not None:
            silent = _Asked(connection, pid)
            silent.over = True
            return silent
    except OSError:
        pass
    connection.close()
    return None


def _pid_in(name: str) -> Optional[int]:
    """Return the process in a socket's name, which is right unless it is in a container."""
    parts = name[len(PREFIX) :].split("-")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else None


def _converse(asked: List[_Asked], request: bytes, deadline: float) -> None:
    """Send the request on all connections, and read the answers until the deadline."""
    with selectors.DefaultSelector() as selector:
        for each in asked:
            with contextlib.suppress(OSError):
                if not each.over:
                    each.connection.send(request)
                    selector.register(each.connection, selectors.EVENT_READ, each)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            for key, _ in selector.select(left):
                _read(key.data)
                if key.data.over:
                    selector.unregister(key.fileobj)


def _read(each: _Asked) -> None:
    try:
        piece = each.connection.recv(_PIECE)
    except BlockingIOError:
        return
    except OSError:
        piece = b""
    each.data += piece
    if not piece or len(each.data) > LONGEST:
        each.over = True


def _parsed(each: _Asked) -> Optional[Any]:
    """Return the answer; None if there is none, or only a part of it."""
    if not each.over or len(each.data) > LONGEST:
        return None
    try:
        told = json.loads(each.data)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


def _owners(pids: Dict[int, int], found: List[int]) -> Dict[int, int]:
    """Return the rank that each process belongs to: it is the rank's own, or one below it."""
    ranks = {pid: rank for rank, pid in pids.items()}
    owners = {}
    for process in found:
        above: Optional[int] = process
        for _ in range(64):
            if above is None or above in ranks:
                break
            fields = processes.stat(above)
            above = int(fields[1]) if fields else None
        if above in ranks:
            owners[process] = ranks[above]
    return owners
