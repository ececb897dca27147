"""What /proc tells of processes, on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dslaunch.node import processes


@pytest.fixture
def connected() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield theirs


def test_a_process_without_sockets_has_none() -> None:
    with subprocess.Popen(["sleep", "10"], stdin=subprocess.DEVNULL) as child:
        assert not processes.has_socket(processes.Descendants(child.pid))
        child.kill()


def test_a_process_with_a_socket_has_one(connected: socket.socket) -> None:
    with subprocess.Popen(["sleep", "10"], stdin=connected) as child:
        assert processes.has_socket(processes.Descendants(child.pid))
        child.kill()


def test_a_socket_of_a_child_counts() -> None:
    parent = """
import socket, subprocess, sys
with socket.socket() as held:
    child = subprocess.Popen(["sleep", "10"], stdin=held)
print("ready", flush=True)
sys.stdin.read()
child.kill()
"""
    command = [sys.executable, "-I", "-S", "-c", parent]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert processes.has_socket(processes.Descendants(child.pid))
        child.stdin.close()


def test_descendants_are_found_again_with_those_that_came_later() -> None:
    parent = """
import subprocess, sys
for line in sys.stdin:
    print(subprocess.Popen(["sleep", "10"]).pid, flush=True)
"""
    command = [sys.executable, "-I", "-S", "-c", parent]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        below, children = processes.Descendants(child.pid), set[int]()
        for _ in range(3):
            assert below.find() == children
            child.stdin.write(b"more\n")
            child.stdin.flush()
            children.add(int(child.stdout.readline()))
        assert below.find() == children == processes.descendants(child.pid)
        assert child.pid in processes.descendants(os.getpid())
        processes.send(children, 9)
        child.stdin.close()


def test_what_has_ended_has_no_socket() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    assert not processes.has_socket(processes.Descendants(child.pid))


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_a_signal_is_sent_to_what_is_meant_right_before(
    has_pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is meant may end at the last moment, and another one get its number."""
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    with subprocess.Popen(["sleep", "60"]) as kept, subprocess.Popen(["sleep", "60"]) as gone:

        def is_meant(pid: int) -> bool:
            if pid == gone.pid:
                gone.kill()
                gone.wait()
            return pid == gone.pid

        processes.send([kept.pid, gone.pid], signal.SIGKILL, is_meant)
        assert kept.poll() is None
        processes.send([kept.pid, gone.pid], signal.SIGTERM)
        assert kept.wait() == -signal.SIGTERM


def test_a_process_is_below_another_one_however_many_are_in_between() -> None:
    parent = """
import os, sys
for _ in range(100):
    if os.fork():
        os.wait()
        os._exit(0)
print(os.getpid(), flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-I", "-S", "-c", parent]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        deepest = int(child.stdout.readline())
        assert processes.is_below(deepest, (child.pid,))
        assert not processes.is_below(child.pid, (deepest,))
        child.stdin.close()
