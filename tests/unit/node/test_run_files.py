"""What a node keeps of runs: the next run removes what is over, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dslaunch.node import directories, processes, run_files

LONG_AGO = 1_000_000_000.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir(mode=0o700)
    return str(tmp_path)


def made(home: str, run: str, about: dict[str, object] | None, *, lasting: bool = False) -> str:
    """A run's directory that nobody has touched for long."""
    directory = directories.make(run, "n1", home, lasting=lasting)
    if about is not None:
        run_files.write(directory, run_files.ABOUT, {"run": run, **about})
    os.utime(directory, (LONG_AGO, LONG_AGO))
    return directory


def test_sweep_removes_directories_of_runs_that_are_over(home: str) -> None:
    over = made(home, "over", {run_files.AGENT: {"pid": 1, "started": "0"}})
    nameless = made(home, "nameless", None)
    assert sorted(run_files.sweep(home, "n1")) == sorted([over, nameless])
    assert not Path(over).exists()


def test_sweep_keeps_what_may_not_be_over(home: str) -> None:
    living = made(home, "living", run_files.these_processes(os.getpid()))
    held = made(home, "held", None)
    lock = run_files.hold(held)
    os.utime(held, (LONG_AGO, LONG_AGO))
    lasting = made(home, "lasting", {}, lasting=True)
    young = directories.make("young", "n1", home, lasting=False)
    other = directories.make("other", "n2", home, lasting=False)
    os.utime(other, (LONG_AGO, LONG_AGO))
    busy = made(home, "busy", {})
    tag = {processes.RUN_ID: "busy", processes.HOST: "n1"}
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, **tag}) as process:
        assert run_files.sweep(home, "n1") == []
        process.kill()
    os.close(lock)
    assert all(map(os.path.isdir, (living, held, lasting, young, other, busy)))


def test_a_stopped_program_of_ours_is_woken_and_another_is_not(home: str) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); os._exit(7)"
    ours = {**os.environ, processes.PROGRAM: "1"}
    with (
        subprocess.Popen([sys.executable, "-c", program], env=ours) as woken,
        subprocess.Popen([sys.executable, "-c", program]) as bystander,
    ):
        for process in (woken, bystander):
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert run_files.clean(home, "n1", None, ended=False) == {"killed": [], "removed": []}
        assert woken.wait(300) == 7
        assert processes.is_stopped(bystander.pid)
        bystander.send_signal(signal.SIGKILL)
