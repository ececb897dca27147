"""Locks in files that processes wait for, and the processes that hold them."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dslaunch.node import file_locks, procfs

TAKES = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'a'), fcntl.LOCK_EX)"
WAITS = """
import sys, threading, time, filelock
from dslaunch.node import hook_waits
def tell():
    while hook_waits.lock_file() is None:
        time.sleep(0.01)
    print(hook_waits.lock_file(), flush=True)
threading.Thread(target=tell, daemon=True).start()
filelock.FileLock(sys.argv[1]).acquire()
"""
SECONDS = 150.0


@contextmanager
def program(text: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", text, path.name]
    process = subprocess.Popen(words, cwd=path.parent, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[Path]:
    """A file that this process has locked."""
    path = tmp_path / "lock"
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path


def test_a_process_that_waits_in_flock_and_the_one_that_holds_the_lock_are_found(
    lock: Path,
) -> None:
    with program(TAKES, lock) as waiting:
        deadline = time.monotonic() + SECONDS
        while file_locks.awaited(waiting.pid) is None:
            assert time.monotonic() < deadline
        assert file_locks.awaited(waiting.pid) == str(lock)
        found = file_locks.holders({waiting.pid: str(lock)}, SECONDS)
    assert found == {str(lock): os.getpid()}


def test_a_process_says_itself_for_which_file_lock_it_polls(lock: Path) -> None:
    with program(WAITS, lock) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline().strip() == str(lock)


def test_a_file_that_is_a_lock_because_it_exists_is_held_by_who_has_it_open(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    with path.open("x"):
        assert file_locks.holders({1: str(path)}, SECONDS) == {str(path): os.getpid()}
    assert file_locks.holders({1: str(path)}, SECONDS) == {}


def test_the_name_of_a_file_is_valid_unicode_whatever_its_bytes_are() -> None:
    assert procfs.printable(os.fsdecode(b"/data/lock\xff")) == "/data/lock?"


def test_a_process_that_does_not_wait_for_a_lock_waits_for_none() -> None:
    assert file_locks.awaited(os.getpid()) is None
