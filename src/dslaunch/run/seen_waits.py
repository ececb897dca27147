"""That a rank waits for others, as its stack shows it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dslaunch.run.collectives import RankState, Transfer
from dslaunch.run.rank_views import LIBRARY, RankView
from dslaunch.run.waits import NEAR, WaitKind, wait

JOINING = frozenset({"init_process_group", "new_group", "split_group"})
"""Functions that return when all ranks of the group have called them."""
BETWEEN_TWO = re.compile(r"(?:batch_)?i?(?:send|recv)(?:_\w+)?")
"""Transfers: ranks that are all in one do not wait for the same."""
_ELSEWHERE = frozenset(
    {
        WaitKind.SLEEP,
        WaitKind.DATA_LOADER,
        WaitKind.CHILD_PROCESS,
        WaitKind.FILE_LOCK,
        WaitKind.STORAGE,
        WaitKind.KERNEL,
    }
)
"""What no collective waits for. A lock may be the backend's, or that of a thread that is in one."""
_AT_SOCKETS = frozenset(
    {"poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "recvfrom", "recvmsg"}
)
_FOR_THREADS = frozenset({"futex"})
"""Also between the threads of a computation."""


def is_seen_waiting(view: RankView) -> bool:
    """Return whether a rank waits for others in what its recorder does not show: it has none, or is
    in an operation that is not compared, such as `monitored_barrier` and `recv`."""
    compared = [] if view.record is None else [e for e in view.record.entries if not e.p2p]
    if view.process is None or any(not entry.completed for entry in compared):
        return False
    seen = view.process.wait
    if seen is not None and seen.kind in (WaitKind.COLLECTIVE, WaitKind.STORE):
        return True
    return _transfer(view) is not None


def _transfer(view: RankView) -> Transfer | None:
    return view.record.transfer if view.record is not None else None


def is_elsewhere(view: RankView) -> bool:
    """Return whether the main thread of a rank does not wait in a collective, although it may have
    begun one: it waits for something else."""
    seen = view.process.wait if view.process is not None else None
    return seen is not None and seen.kind in _ELSEWHERE


def in_native_code(views: Mapping[int, RankView]) -> set[int]:
    """Return the ranks whose main threads wait in native code, for what no frame shows."""
    seen = {rank: view.process for rank, view in views.items() if view.process is not None}
    computing = any(process.state == "R" for process in seen.values())
    calls = _AT_SOCKETS if computing else _AT_SOCKETS | _FOR_THREADS
    return {
        rank
        for rank, process in seen.items()
        if process.syscall in calls and wait(process.frames) is None
    }


def seen_operation(view: RankView) -> str | None:
    """Return the function in which a rank waits for others, by its stack; of a transfer that it has
    begun, `send` or `recv`."""
    transfer = _transfer(view)
    if transfer is not None and not is_blocked(view):  # it waits for one that it has begun
        return transfer.kind
    process = view.process
    seen = process.wait if process is not None else None
    if process is None or seen is None or seen.frame is None:
        return None
    joining = [frame.function for frame in process.frames if frame.function in JOINING]
    if joining:
        return joining[0]
    # torch wraps its functions; the outermost is the one that the program calls
    last = seen.frame
    for index, frame in enumerate(process.frames[: seen.frame + NEAR]):
        if LIBRARY.search(frame.file) and wait([frame]) is not None:
            last = index
    return process.frames[last].function


def forms_group(view: RankView) -> bool:
    """Return whether a rank that has answered waits for a process group to be formed."""
    answered = view.record is not None and view.record.state is RankState.ANSWERED
    return answered and seen_operation(view) in JOINING


def is_blocked(view: RankView) -> bool:
    """Return whether the main thread of a rank is seen in a collective."""
    seen = view.process.wait if view.process is not None else None
    return seen is not None and seen.kind is WaitKind.COLLECTIVE


def is_idle(view: RankView) -> bool:
    """Return whether the main thread of a rank waits for something."""
    return view.process is not None and view.process.wait is not None


def is_joining(view: RankView) -> bool:
    """Return whether a rank waits until others have joined a process group."""
    seen = view.process.wait if view.process is not None else None
    return seen is not None and seen.kind is WaitKind.STORE
