"""What an idle thread waits for, by its frames or its system call. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct


class WaitKind(StrEnum):
    """What a thread waits for."""

    COLLECTIVE = "collective"
    STORE = "store"
    NETWORK = "network"
    DATA_LOADER = "data loader"
    GPU = "GPU"
    STORAGE = "storage"
    CHILD_PROCESS = "child process"
    QUEUE = "queue"
    LOCK = "lock"
    FILE_LOCK = "file lock"
    IO = "I/O"
    SLEEP = "sleep"
    KERNEL = "kernel (uninterruptible)"


class Frame(NamedTuple):
    """One call."""

    file: str
    line: int
    """0: unknown."""
    function: str


class Wait(NamedTuple):
    """What a thread waits for, and the frame that shows it."""

    kind: WaitKind
    frame: int | None


class FileLock(Struct, frozen=True):
    """A lock in a file that a thread waits for."""

    file: str
    pid: int | None = None
    """The process on the same node that holds it; None: unknown, or none does."""
    command: str = ""
    """Of that process, in short."""
    rank: int | None = None
    """The rank that this process belongs to; None: it is none of the run."""


OTHERS = (WaitKind.COLLECTIVE, WaitKind.STORE, WaitKind.NETWORK)
"""Waits for another rank or service: these ranks are seldom the root cause."""
IDLE = (WaitKind.LOCK, WaitKind.QUEUE, WaitKind.IO, WaitKind.SLEEP)
"""Waits of helper threads without work."""
LONGEST = 500
"""Characters of a name, and of the end of a path, that are matched."""
NEAR = 12
"""Number of frames, from the innermost, that are searched for the one that waits."""

_COLLECTIVES = (
    r"(?:all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|reduce|gather|scatter|barrier|"
    r"monitored_barrier|send|recv|isend|irecv|batch_isend_irecv)(?:_\w+)?"
)


class _Rule(NamedTuple):
    """A frame of one of these functions in one of these files waits for `kind`."""

    kind: WaitKind
    file: re.Pattern[str]
    function: re.Pattern[str]


def _rule(kind: WaitKind, file: str, function: str) -> _Rule:
    return _Rule(kind, re.compile(file), re.compile(function))


_RULES = (
    # torch 1.13 to 2.13, DeepSpeed 0.9 to 0.18: the public functions of both
    _rule(
        WaitKind.COLLECTIVE,
        r"torch/distributed/distributed_c10d\.py$",
        _COLLECTIVES,
    ),
    _rule(WaitKind.COLLECTIVE, r"distributed/_functional_collectives\.py$", r"wait\w*|_?all_\w+"),
    _rule(WaitKind.COLLECTIVE, r"deepspeed/comm/\w+\.py$", _COLLECTIVES),
    _rule(
        WaitKind.STORE,
        r"torch/distributed/distributed_c10d\.py$",
        r"_store_based_barrier|_new_process_group_helper|split_group",
    ),
    _rule(WaitKind.STORE, r"torch/distributed/(?:\w+/)*\w*(?:rendezvous|store)\.py$", r".*"),
    _rule(WaitKind.DATA_LOADER, r"torch/utils/data/dataloader\.py$", r"_try_get_data|_get_data"),
    _rule(
        WaitKind.GPU, r"torch/cuda/(?:__init__|streams)\.py$", r"synchronize|wait_(?:event|stream)"
    ),
    _rule(WaitKind.STORAGE, r"torch/serialization\.py$", r"save|load|_save|_load"),
    _rule(WaitKind.CHILD_PROCESS, r"(?:^|/)subprocess\.py$", r"_?wait|_try_wait|_?communicate"),
    _rule(WaitKind.CHILD_PROCESS, r"multiprocessing/popen_\w+\.py$", r"wait|poll"),
    _rule(WaitKind.QUEUE, r"(?:^|/)queue\.py$|multiprocessing/queues\.py$", r"get|put"),
    _rule(WaitKind.LOCK, r"(?:^|/)threading\.py$", r"wait|wait_for|acquire|__enter__|join"),
    _rule(WaitKind.LOCK, r"(?:^|/)threading\.py$", r"_wait_for_tstate_lock"),
    _rule(WaitKind.LOCK, r"multiprocessing/synchronize\.py$", r"wait|acquire|__enter__"),
    _rule(WaitKind.NETWORK, r"(?:^|/)(?:socket|ssl)\.py$", r"recv\w*|read\w*|accept|\w*connect\w*"),
    _rule(WaitKind.IO, r"multiprocessing/connection\.py$", r"\w+"),
    _rule(WaitKind.IO, r"(?:^|/)selectors\.py$", r"select"),
)
_SYSTEM_CALLS = {
    WaitKind.LOCK: "futex",
    WaitKind.SLEEP: "nanosleep clock_nanosleep",
    WaitKind.CHILD_PROCESS: "wait4 waitid",
    WaitKind.NETWORK: "connect accept accept4 recvfrom recvmsg epoll_wait epoll_pwait",
    WaitKind.FILE_LOCK: "flock fcntl",
    WaitKind.IO: "read write pread64 fsync openat newfstatat statx getdents64 poll ppoll select "
    "pselect6 ioctl",
}
_BY_CALL = {call: kind for kind, calls in _SYSTEM_CALLS.items() for call in calls.split()}


def wait(frames: Sequence[Frame], state: str = "", syscall: str = "") -> Wait | None:
    """Return what a thread waits for; None if it is running or nothing shows it.

    `state` and `syscall` are the thread's, from /proc; "" if unknown. The first rule that matches
    wins, not the first frame: a data loader waits on a queue, a queue on a lock.
    """
    innermost = 0 if frames else None
    for kind, file, function in _RULES:
        for index, frame in enumerate(frames[:NEAR]):
            name = frame.function.rpartition(".")[2][:LONGEST]
            if file.search(frame.file[-LONGEST:]) and function.fullmatch(name):
                return Wait(kind, index)
    if state == "D":
        return Wait(WaitKind.KERNEL, innermost)
    called = _BY_CALL.get(syscall)
    if called is None or state == "R":
        return None
    return Wait(called, innermost)
