"""Control groups, with the real kernel where this machine lets us have one."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dslaunch.node import cgroup, processes

BOUND = 60
"""Seconds for what takes a fraction of one."""


@pytest.fixture
def group() -> Iterator[str]:
    made = cgroup.make("test-run")
    if made is None:
        pytest.skip(f"no cgroup v2 that this user may divide (own group: {cgroup.own()})")
    yield made
    cgroup.kill(made)
    cgroup.remove(made)


def start_in(group: str, program: str) -> subprocess.Popen[bytes]:
    fd = cgroup.entrance(group)
    try:
        return subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            preexec_fn=lambda: os.write(fd, b"0"),
        )
    finally:
        os.close(fd)


HIDES = """\
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        if os.geteuid() == 0:
            os.setuid(65534)
        print(os.getpid(), flush=True)
        os.execve("/bin/sleep", ["sleep", "1000"], {})
    os._exit(0)
os._exit(0)
"""


def test_kill_ends_what_has_detached_itself_and_changed_its_user(group: str) -> None:
    with start_in(group, HIDES) as started:
        assert started.stdout is not None
        hidden = int(started.stdout.readline())
        assert hidden in cgroup.members(group)
        fd = os.pidfd_open(hidden)
        cgroup.kill(group)
        ended, _, _ = select.select([fd], [], [], BOUND)
        os.close(fd)
    assert ended
    assert processes.alive(cgroup.members(group)) == set()


def test_remove_takes_groups_below_it_along(group: str) -> None:
    below = Path(group) / "of-the-rank"
    below.mkdir()
    cgroup.remove(group)
    assert not Path(group).exists()


@pytest.mark.parametrize(
    "path", [None, 7, "/", "/etc/dslaunch-test-run-1", "/sys/../tmp/dslaunch-test-run-1"]
)
def test_is_ours_refuses_what_make_did_not_make(path: object) -> None:
    assert not cgroup.is_ours(path, "test-run")


def test_is_ours_refuses_the_group_of_another_run(group: str) -> None:
    assert cgroup.is_ours(group, "test-run")
    assert not cgroup.is_ours(group, "other-run")
