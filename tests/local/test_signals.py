"""Signals to the ranks of a run: by `dslaunch signal`, by its launcher, and before the end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

import dslaunch
from dslaunch.run.rank_signals import signal_number

LAUNCHERS = [
    "direct",
    pytest.param("torchrun", marks=pytest.mark.torch),
    pytest.param("deepspeed", marks=[pytest.mark.torch, pytest.mark.long]),
    pytest.param("accelerate", marks=[pytest.mark.torch, pytest.mark.long]),
]
ELASTIC = pytest.param("elastic", marks=[pytest.mark.torch, pytest.mark.long])
"""Its ranks get their numbers from the rendezvous: they can differ from those of the output."""
SAVES = """
import os, signal, sys, time
rank, asked = os.environ["RANK"], []
def save(number, frame):
    asked.append(number)
for name in ("USR1", "TERM"):
    signal.signal(getattr(signal, "SIG" + name), save)
print("ready", rank, flush=True)
while signal.SIGTERM not in asked:
    if signal.SIGUSR1 in asked:
        asked.clear()
        print("saved", rank, flush=True)
    time.sleep(0.02)
time.sleep(1.0)  # saving; a second TERM would be counted
print("saved and leaves", rank, "after", asked.count(signal.SIGTERM), flush=True)
"""
DEAF = "import os, time\nprint('ready', os.environ['RANK'], flush=True)\ntime.sleep(300)\n"
CLUSTER = "transport: local\nnodes: [{host: 'node[1-2]', slots: 2}]\nstorage: {workdir: work}\n"


class Lines:
    """What a run prints, waited for."""

    def __init__(self) -> None:
        self.arrived: Queue[str] = Queue()
        self.seen: list[str] = []

    def wait_for(self, *texts: str) -> None:
        missing = set(texts)
        while missing:
            self.seen.append(self.arrived.get(timeout=300))
            missing -= {text for text in missing if text in self.seen[-1]}

    def rest(self) -> list[str]:
        while not self.arrived.empty():
            self.seen.append(self.arrived.get())
        return self.seen


Start = Callable[..., tuple[dslaunch.Run, Lines]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a script on two emulated nodes of two ranks each, and waits for its ranks."""
    monkeypatch.setenv("DSLAUNCH_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    started = []

    def start(script: str, launcher: str = "direct") -> tuple[dslaunch.Run, Lines]:
        Path("job.py").write_text(script)
        cluster = dslaunch.Cluster.parse(CLUSTER)
        job = dslaunch.Job.on(cluster, "job.py", launcher=launcher)
        lines = Lines()
        run = dslaunch.run(
            cluster, job, grace=60.0, on_line=lambda line: lines.arrived.put(line.text)
        )
        started.append(run)
        lines.wait_for(*(f"ready {rank}" for rank in range(4)))
        return run, lines

    yield start
    for run in started:
        while not run.done:
            run.stop()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_save_at_a_signal_and_continue(start: Start, launcher: str) -> None:
    run, lines = start(SAVES, launcher)
    assert run.signal("USR1").ranks == (0, 1, 2, 3)
    lines.wait_for(*(f"saved {rank}" for rank in range(4)))
    assert run.signal("SIGUSR1", ranks=[1, 2]).ranks == (1, 2)
    lines.wait_for("saved 1", "saved 2")
    assert not run.done
    assert sorted(text for text in lines.rest() if text.startswith("saved")) == [
        *("saved 0", "saved 1", "saved 1", "saved 2", "saved 2", "saved 3")
    ]


@pytest.mark.parametrize("launcher", [*LAUNCHERS, ELASTIC])
def test_ranks_that_are_asked_to_end_get_term_once_and_may_save(
    start: Start, launcher: str
) -> None:
    run, lines = start(SAVES, launcher)
    run.stop()
    outcome = run.wait(timeout=300)
    assert outcome.status == "interrupted"
    left = sorted(text for text in lines.rest() if "leaves" in text)
    assert left == [f"saved and leaves {rank} after 1" for rank in range(4)]
    assert not outcome.left


def test_a_signal_that_would_end_a_rank_is_sent_to_none(start: Start) -> None:
    run, _ = start(DEAF)
    with pytest.raises(dslaunch.DslaunchError, match="without a handler") as refused:
        run.signal("USR1")
    assert refused.value.exit_code == 1
    assert run.status().state == "running"
    assert run.signal("WINCH").ranks == (0, 1, 2, 3)
    assert run.signal("USR1", ranks=[3], force=True).ranks == (3,)
    outcome = run.wait(timeout=300)
    assert (outcome.status, outcome.cause and outcome.cause.rank) == ("failed", 3)
    assert outcome.cause is not None
    assert outcome.cause.signal == signal.SIGUSR1


def test_a_rank_that_does_not_exist_gets_no_signal(start: Start) -> None:
    run, lines = start(SAVES)
    with pytest.raises(dslaunch.DslaunchError, match="rank 7-8"):
        run.signal("USR1", ranks=[0, 7, 8])
    assert run.signal("CONT").ranks == (0, 1, 2, 3)
    assert not [text for text in lines.rest() if text.startswith("saved")]


@pytest.mark.parametrize("name", ["KILL", "STOP", "9", "QUIT", "", "USR"])
def test_other_signals_are_not_sent(name: str) -> None:
    with pytest.raises(dslaunch.UsageError):
        signal_number(name)


# ---------------------------------------------------------------- signals of the launcher


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Starts `dslaunch run` as a program of its own."""
    monkeypatch.setenv("DSLAUNCH_STATE", str(tmp_path / "state"))
    processes: list[subprocess.Popen[str]] = []

    def start(script: str) -> subprocess.Popen[str]:
        (tmp_path / "c.yaml").write_text(CLUSTER)
        (tmp_path / "job.py").write_text(script)
        words = [sys.executable, "-m", "dslaunch", "run", "--launcher", "direct", "--grace", "60"]
        process = subprocess.Popen(
            [*words, "c.yaml", "job.py"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)


def wait_for(process: subprocess.Popen[str], *texts: str) -> list[str]:
    """Read output until all texts have appeared; return it."""
    assert process.stdout is not None
    missing, seen = set(texts), []
    while missing:
        line = process.stdout.readline()
        assert line, seen
        seen.append(line)
        missing -= {text for text in missing if text in line}
    return seen


def test_the_launcher_forwards_usr1_and_continues(launched: Callable[[str], Any]) -> None:
    process = launched(SAVES)
    wait_for(process, *(f"ready {rank}" for rank in range(4)))
    process.send_signal(signal.SIGUSR1)
    wait_for(process, *(f"saved {rank}" for rank in range(4)), "forwarded to all ranks")
    assert process.poll() is None


def test_the_launcher_neither_dies_of_usr2_nor_ends_ranks_without_a_handler(
    launched: Callable[[str], Any],
) -> None:
    process = launched(DEAF)
    wait_for(process, *(f"ready {rank}" for rank in range(4)))
    process.send_signal(signal.SIGUSR2)
    wait_for(process, "no handler: ranks 0-3")
    assert process.poll() is None


def test_term_of_the_launcher_lets_the_ranks_save(launched: Callable[[str], Any]) -> None:
    process = launched(SAVES)
    wait_for(process, *(f"ready {rank}" for rank in range(4)))
    process.send_signal(signal.SIGTERM)
    wait_for(process, *(f"saved and leaves {rank} after 1" for rank in range(4)))
    assert process.wait(timeout=300) == 130
