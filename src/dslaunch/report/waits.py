"""What a thread that does nothing waits for, told by its frames or by its system call. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class Frame(NamedTuple):
    """One call."""

    file: str
    line: int
    """0: unknown."""
    function: str


class Wait(NamedTuple):
    """What a thread waits for, and which of its frames says so."""

    kind: str
    frame: int | None


OTHERS = ("collective", "store", "network")
"""Waits that end when somebody else does something: these ranks are seldom the cause."""
IDLE = ("lock", "queue", "I/O", "sleep")
"""Waits that mean nothing in a helper thread: it has no work."""
LONGEST = 500
"""Characters of a name, and of the end of a path, that are looked at."""
NEAR = 12
"""Frames, the innermost first, among which the one that waits is sought."""

_COLLECTIVES = (
    "all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|reduce|gather|scatter|barrier|"
    "monitored_barrier|send|recv|isend|irecv|batch_isend_irecv"
)
_RULES = tuple(
    (kind, re.compile(file), re.compile(function))
    for kind, file, function in (
        # torch 1.13 to 2.13, DeepSpeed 0.9 to 0.18: the public functions of both
        ("collective", r"torch/distributed/distributed_c10d\.py$", rf"(?:{_COLLECTIVES})(?:_\w+)?"),
        ("collective", r"torch/distributed/_functional_collectives\.py$", r"wait\w*|_?all_\w+"),
        ("collective", r"deepspeed/comm/\w+\.py$", rf"(?:{_COLLECTIVES})(?:_\w+)?"),
        ("store", r"torch/distributed/distributed_c10d\.py$", r"_store_based_barrier"),
        ("store", r"torch/distributed/(?:\w+/)*\w*(?:rendezvous|store)\.py$", r".*"),
        ("data loader", r"torch/utils/data/dataloader\.py$", r"_try_get_data|_get_data"),
        ("GPU", r"torch/cuda/(?:__init__|streams)\.py$", r"synchronize|wait_event|wait_stream"),
        ("storage", r"torch/serialization\.py$", r"save|load|_save|_load"),
        ("child process", r"(?:^|/)subprocess\.py$", r"_?wait|_try_wait|_?communicate"),
        ("child process", r"multiprocessing/popen_\w+\.py$", r"wait|poll"),
        ("queue", r"(?:^|/)queue\.py$|multiprocessing/queues\.py$", r"get|put"),
        ("lock", r"(?:^|/)threading\.py$", r"wait|wait_for|acquire|__enter__|join"),
        ("lock", r"(?:^|/)threading\.py$", r"_wait_for_tstate_lock"),
        ("lock", r"multiprocessing/synchronize\.py$", r"wait|acquire|__enter__"),
        ("network", r"(?:^|/)(?:socket|ssl)\.py$", r"recv\w*|read\w*|accept|\w*connect\w*"),
        ("I/O", r"multiprocessing/connection\.py$", r"\w+"),
        ("I/O", r"(?:^|/)selectors\.py$", r"select"),
    )
)  # fmt: skip
_CALLS = {
    "futex": "lock",
    **dict.fromkeys(("nanosleep", "clock_nanosleep"), "sleep"),
    **dict.fromkeys(("wait4", "waitid"), "child process"),
    **dict.fromkeys(("connect", "accept", "accept4", "recvfrom", "recvmsg"), "network"),
    **dict.fromkeys(("epoll_wait", "epoll_pwait"), "network"),
    **dict.fromkeys(("flock", "fcntl"), "file lock"),
    **dict.fromkeys(("read", "write", "pread64", "fsync", "openat", "newfstatat"), "I/O"),
    **dict.fromkeys(("statx", "getdents64", "poll", "ppoll", "select", "pselect6", "ioctl"), "I/O"),
}


def wait(frames: Sequence[Frame], state: str = "", syscall: str = "") -> Wait | None:
    """What a thread waits for; None if it computes, or nothing tells.

    `state` and `syscall` are the thread's, as /proc tells them; "" if unknown. The rule that comes
    first wins, not the frame: a data loader waits by means of a queue, a queue by means of a lock.
    """
    for kind, file, function in _RULES:
        for index, frame in enumerate(frames[:NEAR]):
            name = frame.function.rpartition(".")[2][:LONGEST]
            if file.search(frame.file[-LONGEST:]) and function.fullmatch(name):
                return Wait(kind, index)
    if state == "D":
        return Wait("the kernel, not to be interrupted", 0 if frames else None)
    kind_ = _CALLS.get(syscall)
    return Wait(kind_, 0 if frames else None) if kind_ and state != "R" else None
