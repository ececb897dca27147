"""Why one rank does not enter the collective that others wait in, by its processes. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from dslaunch.run.hang_verdict import HangCode
from dslaunch.run.rank_views import Process, RankView
from dslaunch.run.waits import FileLock, Wait, WaitKind

BY_RANK = (
    HangCode.DEAD,
    HangCode.STOPPED,
    HangCode.EXITING,
    HangCode.FILESYSTEM,
    HangCode.LOCK,
    HangCode.DATALOADER,
    HangCode.BUSY,
    HangCode.NOT_ENTERED,
)
"""Codes about single ranks; the first that holds for one of several ranks is the verdict."""
_DATA = re.compile(r"torch/utils/data/")
_BATON = re.compile(r"torch/utils/file_baton\.py$|filelock/\w+\.py$")
"""Locks in files: of PyTorch's extension builds, and of the package filelock."""
_AT_EXIT = re.compile(r"threading\.py:_shutdown|multiprocessing/util\.py:_exit_function")
"""The functions that wait, when a program has ended, for its threads and its child processes."""
_COMPILERS = re.compile(r"torch/_dynamo/convert_frame\.py$|triton/compiler/")
"""Where they compile, which they do in other processes and threads, and wait for these."""
_OF_FILES = (WaitKind.STORAGE, WaitKind.KERNEL)
_LOCKS = (WaitKind.LOCK, WaitKind.FILE_LOCK, WaitKind.QUEUE)
_OPENS = ("openat", "newfstatat", "statx", "getdents64", "fsync")
_READS = ("read", "pread64", "write")
_NO_FILE = re.compile(r"^(?:|socket:.*|pipe:.*|anon_inode:.*|/dev/pts/.*)$")


def halted(view: RankView) -> HangCode | None:
    """Return why a rank runs no code at all; None: it may."""
    if view.ended:
        return HangCode.DEAD
    state = view.process.state if view.process is not None else ""
    if state and state in "ZX":
        return HangCode.DEAD
    return HangCode.STOPPED if state and state in "Tt" else None


def code_of(view: RankView) -> HangCode:
    """Return why a rank does not enter the collective that others wait in."""
    why_halted = halted(view)
    if why_halted is not None:
        return why_halted
    process = view.process
    if process is None:
        return HangCode.NOT_ENTERED
    seen = process.wait
    checks: tuple[tuple[HangCode, Callable[[], bool]], ...] = (
        (HangCode.EXITING, lambda: _is_exiting(process)),
        (HangCode.LOCK, lambda: file_lock(view) is not None),
        (HangCode.LOCK, lambda: any(_BATON.search(frame.file) for frame in process.frames[:12])),
        (HangCode.DATALOADER, lambda: _in_data_loader(process)),
        (HangCode.FILESYSTEM, lambda: _waits_for_file(process, seen)),
        (HangCode.BUSY, lambda: any(_COMPILERS.search(frame.file) for frame in process.frames)),
        (HangCode.LOCK, lambda: seen is not None and seen.kind in _LOCKS),
        (HangCode.BUSY, lambda: process.state == "R"),
    )
    return next((code for code, holds in checks if holds()), HangCode.NOT_ENTERED)


def file_lock(view: RankView) -> FileLock | None:
    """Return the lock in a file that the main thread of a rank waits for."""
    return view.record.lock if view.record is not None else None


def _is_exiting(process: Process) -> bool:
    """Return whether the main thread has left the program: Python calls what waits there."""
    outermost = process.frames[-1:]
    return any(_AT_EXIT.search(f"{frame.file}:{frame.function}") for frame in outermost)


def _in_data_loader(process: Process) -> bool:
    return any(_DATA.search(frame.file) for frame in process.frames)


def bad_workers(view: RankView) -> list[Process]:
    """Return the processes below a rank that are stopped, blocked or dead."""
    return [child for child in view.children if child.state in ("T", "t", "D", "Z")]


def _waits_for_file(process: Process, seen: Wait | None) -> bool:
    if seen is not None and seen.kind in _OF_FILES:
        return True
    if process.state == "R":
        return False
    if process.syscall in _OPENS:
        return True
    return process.syscall in _READS and not _NO_FILE.match(process.on)
