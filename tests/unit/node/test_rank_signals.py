"""Which signals reach which processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from dslaunch.node import rank_signals
from dslaunch.node.rank_signals import SIGNALS, deliver

HANDLES = "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: None)"
IGNORES = "import signal, sys; signal.signal(signal.SIGUSR1, signal.SIG_IGN)"
Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program that waits, and returns its process."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str = "import sys", **env: str) -> int:
        program = f"{code}; print('up', flush=True); sys.stdin.read()"
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_rank_without_a_handler_gets_no_signal_that_would_end_it(start: Start) -> None:
    pids = {0: start(HANDLES), 1: start(), 2: start(IGNORES)}
    number = SIGNALS["USR1"]
    assert deliver(pids, number, None, check=True) == {"sent": [0, 2], "unhandled": [1]}
    assert deliver(pids, number, None) == {"sent": [0, 2], "unhandled": [1]}
    assert deliver(pids, number, [1, 2, 7]) == {"sent": [2], "unhandled": [1]}
    assert deliver(pids, number, [1], force=True) == {"sent": [1], "unhandled": [1]}


def test_a_signal_that_is_meant_to_end_a_rank_needs_no_handler(start: Start) -> None:
    assert deliver({3: start()}, SIGNALS["TERM"], None) == {"sent": [3], "unhandled": []}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, 0, 64, -1])
def test_no_other_signal_is_sent(start: Start, number: int) -> None:
    with pytest.raises(ValueError, match="not sent"):
        deliver({0: start()}, number, None)


def test_ranks_of_a_job_are_the_topmost_processes_with_their_rank(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    here = {"SLURM_JOB_ID": "990012", "SLURMD_NODENAME": "node1"}
    rank = start(RANK="4", **here)
    start(RANK="5", SLURM_JOB_ID="990012", SLURMD_NODENAME="node2")
    start(RANK="6", SLURM_JOB_ID="990013", SLURMD_NODENAME="node1")
    start(RANK="", **here)
    start(**here)
    assert rank_signals.ranks_of_job(["990012", "990011"]) == {4: rank}
