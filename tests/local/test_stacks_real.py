"""What real programs are doing: torch ranks, data loader workers, deadlocks, other interpreters."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pythons import interpreter

from dslaunch.node import rank_hooks, stacks
from dslaunch.report.stacks import StackGroup, fold, page
from dslaunch.run.timeouts import Timeouts

if TYPE_CHECKING:
    from conftest import Emulated

ALL_REDUCE = """
import os, time, torch, torch.distributed as dist
def prepare():
    time.sleep(600)
dist.init_process_group(
    "gloo", init_method="file://" + os.path.abspath("meeting"), rank=int(os.environ["RANK"]),
    world_size=3,
)
value = torch.ones(4)
dist.all_reduce(value)
print("met", flush=True)
if dist.get_rank() == 1:
    prepare()
dist.all_reduce(value)
"""
DEADLOCK = """
import threading, time
first, second = threading.Lock(), threading.Lock()
met = threading.Barrier(2)
def other():
    with second:
        met.wait()
        with first:
            pass
threading.Thread(target=other, name="other", daemon=True).start()
def mine():
    with first:
        met.wait()
        print("met", flush=True)
        with second:
            pass
mine()
"""
WORKERS = """
import multiprocessing, time
def work():
    time.sleep(600)
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    workers = [context.Process(target=work, daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    print("met", flush=True)
    for worker in workers:
        worker.join()
"""
LOADER = """
import time, torch.utils.data
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        time.sleep(600)
def train():
    for batch in torch.utils.data.DataLoader(Slow(), num_workers=2):
        pass
print("met", flush=True)
train()
"""


class Ranks:
    """Armed programs, each the only rank of a node of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, program: str, python: str = sys.executable, **more: str) -> None:
        """Start the next rank; all of them run the program of the first."""
        script = self.directory / "job.py"
        # once: a rank that is still starting would read a file that is being written again
        if not self.processes:
            script.write_text(program)
        environment = {**os.environ, **more, "RANK": str(len(self.processes))}
        environment |= rank_hooks.arm(str(self.directory), environment)
        self.processes.append(
            subprocess.Popen(
                [python, script.name],
                env=environment,
                cwd=self.directory,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )

    def wait_until_they_print(self) -> None:
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "met\n"

    def look(self) -> dict[str, list[dict[str, Any]]]:
        pids = {rank: process.pid for rank, process in enumerate(self.processes)}
        return stacks.collect(pids, 20)

    def groups_until(
        self, tool: str, settled: Callable[[list[StackGroup]], bool]
    ) -> list[StackGroup]:
        """Look again until the programs have come to where they wait, and that tool shows it.

        While an interpreter starts, py-spy may find nothing that it understands yet.
        """
        deadline = time.monotonic() + 300
        while True:
            found = self.look()
            tools = {each["tool"] for every in found.values() for each in every if each["threads"]}
            groups = fold({f"n{rank}": {rank: every} for rank, every in found.items()})
            if tools == {tool} and settled(groups):
                return groups
            assert time.monotonic() < deadline, (tools, page(groups))

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    started = Ranks(tmp_path)
    yield started
    started.end()


@pytest.fixture(scope="module")
def waiting_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Three ranks of which one sleeps and two wait for it, for both tools: each imports torch."""
    started = Ranks(tmp_path_factory.mktemp("waiting"))
    for _ in range(3):
        started.start(ALL_REDUCE)
    started.wait_until_they_print()
    yield started
    started.end()


@pytest.fixture(params=["py-spy", "faulthandler"])
def tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way in which stacks are had; py-spy only where it is installed and may read."""
    name = str(request.param)
    if name == "faulthandler":
        monkeypatch.setattr(stacks, "_find_py_spy", lambda pid: None)
    elif not py_spy_may_read():
        pytest.skip("py-spy is not installed, or may not read other processes")
    return name


def py_spy_may_read() -> bool:
    program = shutil.which("py-spy") or shutil.which(
        "py-spy", path=str(Path(sys.executable).parent)
    )
    if program is None:
        return False
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        command = [program, "dump", "--nonblocking", "--pid", str(other.pid)]
        deadline = time.monotonic() + 5
        while (code := subprocess.run(command, capture_output=True).returncode) != 0:
            if time.monotonic() > deadline:
                break
        other.communicate(b"\n")
    return code == 0


def waits(groups: list[StackGroup], *kinds: str) -> bool:
    return [group.main.wait and group.main.wait.kind for group in groups] == list(kinds)


def names(group: StackGroup) -> list[str]:
    return [frame.function for frame in group.main.frames]


@pytest.mark.torch
def test_a_sleeping_rank_is_distinguished_from_those_that_wait_for_it(
    waiting_ranks: Ranks, tool: str
) -> None:
    groups = waiting_ranks.groups_until(tool, lambda found: waits(found, "sleep", "collective"))
    odd, others = groups
    assert odd.members == (("n1", 1),)
    assert names(odd) == ["prepare", "<module>"]
    assert [rank for _, rank in others.members] == [0, 2]
    assert names(others) == ["all_reduce", "<module>"]
    assert "job.py:4" in page(groups, 80).splitlines()[1]
    assert [process.poll() for process in waiting_ranks.processes] == [None] * 3


def test_both_ends_of_a_deadlock_are_shown(ranks: Ranks, tool: str) -> None:
    ranks.start(DEADLOCK)
    ranks.wait_until_they_print()

    shows_waits = os.access(f"/proc/{ranks.processes[0].pid}/syscall", os.R_OK)

    def settled(groups: list[StackGroup]) -> bool:
        (group,) = groups
        places = [group.main, *(other.thread for other in group.others)]
        shown = [(place.frames[0].function, place.frames[0].line) for place in places]
        # a thread is at the line before it waits there
        return shown == [("mine", 15), ("other", 8)] and (not shows_waits or waits(groups, "lock"))

    assert len(ranks.groups_until(tool, settled)) == 1


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_are_shown_on_their_own(ranks: Ranks, tool: str, method: str) -> None:
    ranks.start(WORKERS.format(method=method))
    ranks.wait_until_they_print()

    def settled(groups: list[StackGroup]) -> bool:
        shown = [g for g in groups if g.main.frames and names(g)[0] == "work"]
        return waits(groups[:1], "child process") and [g.count for g in shown] == [2]

    groups = ranks.groups_until(tool, settled)
    assert groups[0].members == (("n0", 0),)
    (workers,) = [g for g in groups if g.main.frames and names(g)[0] == "work"]
    # a forked worker's frames end where its parent's begin
    assert "<module>" not in names(workers) or method != "fork"
    assert workers.command


def calls(group: StackGroup, function: str) -> bool:
    """Whether a group's innermost frame is that function; one that only starts has none yet."""
    return bool(group.main.frames) and function in group.main.frames[0].function


@pytest.mark.torch
def test_a_rank_that_waits_for_its_data_loader_shows_who_is_slow(ranks: Ranks, tool: str) -> None:
    ranks.start(LOADER)
    ranks.wait_until_they_print()

    def settled(groups: list[StackGroup]) -> bool:
        slow = [g for g in groups if g.command and calls(g, "__getitem__")]
        return waits(groups[:1], "data loader") and [g.count for g in slow] == [2]

    rank, workers = ranks.groups_until(tool, settled)
    assert "train" in names(rank)
    assert (workers.main.frames[0].file, workers.main.frames[0].line) == ("job.py", 7)


def test_a_rank_below_a_shell_is_found(ranks: Ranks, tool: str, tmp_path: Path) -> None:
    shell = tmp_path / "wrapped"
    shell.write_text(f'#!/bin/sh\n{sys.executable} "$@"\nexit $?\n')
    shell.chmod(0o700)
    ranks.start(DEADLOCK, python=str(shell))
    ranks.wait_until_they_print()
    groups = ranks.groups_until(tool, lambda found: len(found) == 2)
    assert (groups[0].main.frames, bool(groups[0].note)) == ((), True)
    assert "mine" in names(groups[1])


def test_a_signal_leaves_waits_and_sleeps_as_they_were(ranks: Ranks, tool: str) -> None:
    program = (
        "import os, select, socket, time\n"
        "a, b = socket.socketpair()\n"
        "print('met', flush=True)\n"
        "start = time.monotonic()\n"
        "time.sleep(1.5)\n"
        "assert select.select([a], [], [], 1.5) == ([], [], [])\n"
        "print(round((time.monotonic() - start) / 1.5), flush=True)\n"
    )
    ranks.start(program)
    ranks.wait_until_they_print()
    (process,) = ranks.processes
    seen = 0
    while process.poll() is None:
        seen += any(each["threads"] for each in ranks.look()["0"])
    assert seen > 3
    assert process.stdout is not None
    assert process.stdout.read() == "2\n"
    assert process.returncode == 0


def test_arming_imports_one_small_module(tmp_path: Path) -> None:
    def imported(more: dict[str, str]) -> set[str]:
        command = [sys.executable, "-c", "import sys; print(*sys.modules)"]
        return set(subprocess.check_output(command, env={**os.environ, **more}, text=True).split())

    armed = imported(rank_hooks.arm(str(tmp_path), {}))
    assert armed - imported({}) == {"faulthandler"}


@pytest.mark.parametrize("minor", range(8, 15))
def test_every_python_is_armed(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, minor: int
) -> None:
    python = interpreter(minor)
    monkeypatch.setattr(stacks, "_find_py_spy", lambda pid: None)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('met', flush=True)\n")
    program = DEADLOCK.replace('print("met", flush=True)', "pass")
    ranks.start(program, python=python, PYTHONPATH=str(tmp_path / "own"))
    ranks.wait_until_they_print()

    def settled(groups: list[StackGroup]) -> bool:
        return bool(groups[0].main.frames) and names(groups[0])[0] == "mine"

    (group,) = ranks.groups_until("faulthandler", settled)
    assert [frame.line for frame in group.main.frames[:2]] == [15, 17]


def test_a_run_that_ended_for_a_hang_reports_the_stacks_of_its_ranks(
    emulated: Emulated,
) -> None:
    program = (
        "import os, time\n"
        "def waits():\n    time.sleep(600)\n"
        "def is_stuck():\n    time.sleep(600)\n"
        "is_stuck() if os.environ['RANK'] == '2' else waits()\n"
    )
    seen = emulated.run(program, timeouts=Timeouts(grace=2, exit_timeout=20, hang_timeout=10))
    assert seen.outcome is not None
    stuck, waiting = fold(seen.outcome.stacks)
    assert (stuck.members, names(stuck)) == ((("n1", 2),), ["is_stuck", "<module>"])
    assert (waiting.members, names(waiting)) == (
        (("n0", 0), ("n0", 1)),
        ["waits", "<module>"],
    )
