"""What real ranks answer about their collectives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dslaunch.node import collectives, own_work, processes, rank_hooks, stacks
from dslaunch.node.hook_collectives import MOST_READ
from dslaunch.protocol.collectives import COLLECTIVES
from dslaunch.protocol.values import parse
from dslaunch.run.collectives import RankRecord, RankState, Transfer, records

TRAIN = """
import os, threading, time, torch, torch.distributed as dist
dist.init_process_group(
    "gloo", init_method="file://" + os.path.abspath("meeting"), rank=int(os.environ["RANK"]),
    world_size=2,
)
value = torch.ones(4, 2)
dist.all_reduce(value)
alone = [dist.new_group([rank], group_desc=f"alone-{rank}") for rank in range(2)]
child = os.fork()
if not child:
    time.sleep(600)
print("threads", threading.active_count(), flush=True)
if dist.get_rank() == 1:
    dist.all_reduce(value, group=alone[1])
    from torch.utils.file_baton import FileBaton
    build = "def load(): FileBaton('lock').wait()"
    exec(compile(build, "/lib/torch/utils/cpp_extension.py", "exec"))
    load()
dist.all_reduce(value)
"""


class Ranks:
    """Two armed ranks of one program."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: list[subprocess.Popen[str]] = []
        self.lock = directory / "lock"
        """Of a build, for as long as it exists."""

    def start(self, program: str, **more: str) -> None:
        script = self.directory / "train.py"
        script.write_text(program)
        self.lock.touch()
        variables = rank_hooks.arm(str(self.directory), {})
        for rank in range(2):
            environment = {**os.environ, **variables, **more, "RANK": str(rank)}
            process = subprocess.Popen(
                [sys.executable, script.name],
                env=environment,
                cwd=self.directory,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self.processes.append(process)

    @property
    def pids(self) -> dict[int, int]:
        return {rank: process.pid for rank, process in enumerate(self.processes)}

    def line(self, rank: int) -> str:
        stream = self.processes[rank].stdout
        assert stream is not None
        return stream.readline()

    def ask(self, what: str, timeout: float = 10.0) -> dict[int, RankRecord]:
        told = collectives.collect(self.pids, str(self.directory), what, timeout)
        return records("node1", parse(COLLECTIVES, told), offset=0.0)

    def ask_until(
        self,
        what: str,
        holds: Callable[[dict[int, RankRecord]], bool],
        timeout: float = 10.0,
    ) -> Any:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            found = self.ask(what, timeout)
            if holds(found):
                return found
        raise AssertionError(found)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    tmp_path.chmod(0o700)
    started = Ranks(tmp_path)
    yield started
    for process in started.processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def waits_in_the_second(found: dict[int, RankRecord]) -> bool:
    current = found[0].current
    numbers = [group.completed for group in found[1].groups]
    return current is not None and current.seq == 2 and numbers == [1, 1]


def test_ranks_answer_which_collective_they_are_in(ranks: Ranks) -> None:
    ranks.start(TRAIN)
    # no thread of `threading`, and no output of ours
    assert [ranks.line(0), ranks.line(1)] == ["threads 1\n", "threads 1\n"]

    found = ranks.ask_until("full", waits_in_the_second)
    waiting, other = found[0], found[1]
    assert [waiting.state, other.state] == [RankState.ANSWERED] * 2
    assert (waiting.pid, other.pid) == (ranks.pids[0], ranks.pids[1])
    current = waiting.current
    assert current is not None
    assert (current.operation, current.group, current.backend) == ("all_reduce", "0", "gloo")
    assert (current.sizes, current.dtypes) == (((4, 2),), ("Float",))
    assert abs(time.time() - current.entered) < 3600
    default, alone = other.groups
    assert (default.description, default.ranks, default.completed) == ("default_pg", (0, 1), 1)
    assert (alone.description, alone.ranks, alone.enqueued) == ("alone-1", (1,), 1)
    assert other.current is None
    found = ranks.ask_until("status", lambda found: found[1].compiled is not None)
    assert found[0].compiled is None
    assert found[1].transferred > 0
    mine = own_work.cpu_seconds(processes.stat(os.getpid()) or [])
    with ranks.lock.open():  # as a process of another job has it that builds
        ranks.ask_until("status", lambda now: now[1].compiled >= found[1].compiled + mine)

    status = ranks.ask("status")
    assert [(each.enqueued, each.completed) for each in status[0].groups] == [(2, 1)]
    assert status[0].entries == ()

    # our thread is in no stack
    shown = stacks.collect({0: ranks.pids[0]}, 20)["0"][0]
    files = {frame["file"] for thread in shown["threads"] for frame in thread["frames"]}
    assert "train.py" in files
    assert not [file for file in files if "hook_collectives" in file]

    os.kill(ranks.pids[1], signal.SIGSTOP)
    ranks.ask_until("status", only_the_first_answers, timeout=1.0)

    for process in ranks.processes:
        os.killpg(process.pid, signal.SIGKILL)
    assert {each.state for each in ranks.ask_until("status", all_absent).values()} == {"absent"}
    assert not list(ranks.directory.glob("collectives-*"))


def only_the_first_answers(found: dict[int, RankRecord]) -> bool:
    return (found[0].state, found[1].state) == (RankState.ANSWERED, RankState.SILENT)


def all_absent(found: dict[int, RankRecord]) -> bool:
    return {each.state for each in found.values()} == {RankState.ABSENT}


DEEP = f"""import torch._inductor.codecache
def call(depth, run):
    return call(depth - 1, run) if depth else run()
{TRAIN.replace("dist.all_reduce(value)", "call(40, lambda: dist.all_reduce(value))")}"""


@pytest.mark.long  # to symbolize stacks, torch imports 800 modules
def test_a_collective_that_is_waited_for_has_its_stack_down_to_the_script(ranks: Ranks) -> None:
    ranks.start(DEEP)
    current = ranks.ask_until("full", waits_in_the_second)[0].current
    assert (current.frames[-1].file, current.frames[-1].function) == ("train.py", "<module>")


TRANSFERS = f"""{TRAIN[: TRAIN.index("alone = ")]}
pair = dist.new_group([1, 0])
dist.broadcast(value, group=pair, group_src=dist.get_group_rank(pair, 1))
dist.broadcast(value, 0)
alone = [dist.new_group([rank]) for rank in range(2)]
def share(value):
    dist.broadcast(value, 0, group=alone[0])
    return value
if dist.get_rank() == 0:
    torch.compile(share, backend="eager")(value)
if dist.get_rank() == 0:
    dist.send(value, dst=1)
else:
    dist.recv(value)
if dist.get_rank() == 0:
    dist.irecv(value, 1).wait()
else:
    dist.recv(value, group=pair, group_src=dist.get_group_rank(pair, 0))
"""


def test_ranks_answer_from_which_rank_they_receive_and_broadcast_also_with_torch_compile(
    ranks: Ranks,
) -> None:
    ranks.start(TRANSFERS)
    last = [Transfer("recv", 1), Transfer("recv", 0)]
    found = ranks.ask_until("full", lambda found: [found[0].transfer, found[1].transfer] == last)
    for record in found.values():
        roots = [entry.root for entry in record.entries if entry.operation == "broadcast"]
        assert roots[:2] == [1, 0]
    assert all(found[rank].transfers for rank in range(2))


@pytest.mark.long
def test_a_buffer_size_of_the_user_is_kept(ranks: Ranks) -> None:
    ranks.start(TRAIN, TORCH_FR_BUFFER_SIZE="0")
    assert ranks.line(0) == "threads 1\n"
    record = ranks.ask("full")[0]
    assert (record.state, record.initialized, record.entries) == (RankState.ANSWERED, True, ())


@pytest.mark.long
def test_a_large_buffer_of_the_user_is_not_read_while_training(ranks: Ranks) -> None:
    ranks.start(TRAIN, TORCH_FR_BUFFER_SIZE=str(MOST_READ + 1))
    assert ranks.line(0) == "threads 1\n"
    assert ranks.ask("times")[0].error is not None
    assert ranks.ask("full")[0].entries


@pytest.mark.long
def test_a_directory_that_others_can_read_is_not_used(ranks: Ranks) -> None:
    ranks.directory.chmod(0o755)
    ranks.start(TRAIN)
    assert ranks.line(0) == "threads 1\n"
    assert not list(ranks.directory.glob("collectives-*"))
    with pytest.raises(PermissionError):
        ranks.ask("status")
