"""Trainings that hang, each in one way: data for the judge's tests and for `test_hangs`.

- `python -m tests.testbed.hangs record FILE [HOW...]` runs each of them, or these, with 4 ranks on
  this machine and records what their processes and their recorders answer, for the unit tests.
- `python -m tests.testbed.hangs alone FILE [HOW...]` records what PyTorch alone reports, with a
  timeout of 10 s for its process groups.
- `python -m tests.testbed.hangs page ROWS ALONE` prints docs/reference/hangs.md from what
  `test_hangs` has recorded and from that.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dslaunch.node import collectives, processes, rank_hooks, stacks
from tests.gpu.hangs import RECORDED, section
from tests.testbed import further_hangs
from tests.testbed.reported_hangs import REPORTED, Reported, cells

JOB = '''\
"""Trains in some steps, and hangs in the way that its first argument names."""
import datetime, fcntl, os, sys, threading, time
import torch, torch.distributed as dist
import torch.utils.data


class Stuck(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index > 1:
            read_sample()
        return index


def read_sample():
    time.sleep(600)


def save_checkpoint():
    time.sleep(600)


def compute():
    while True:
        pass


def read_file():
    path = f"pipe{os.getpid()}"
    os.mkfifo(path)
    with open(path) as file:
        file.read()


def lock():
    mutex = threading.Lock()
    mutex.acquire()
    mutex.acquire()


def take(path):
    file = open(path, "a")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def lock_file():
    path = f"lock{os.getpid()}"
    file = take(path)
    if not os.fork():  # a process that the rank has started, and that keeps the lock
        time.sleep(600)
    file.close()
    take(path)


def collect(rank, target):
    out = [torch.empty(16) for _ in range(dist.get_world_size())] if rank == target else None
    dist.gather(torch.ones(16), out, dst=target)


def receive(value, source):
    dist.irecv(value, src=source).wait()


def load():
    for _ in torch.utils.data.DataLoader(Stuck(), num_workers=1):
        pass


def train(how):
    seconds = float(os.environ.get("GROUP_TIMEOUT", 1800))
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
    rank, world = dist.get_rank(), dist.get_world_size()
    odd = world // 2 + 1
    value = torch.ones(16)
    pair = dist.new_group([0, odd], group_desc="pair")
    for step in range(3):
        dist.all_reduce(value)
    print("up", flush=True)
    if how == "slow":
        return compute()
    if how == "mismatch-order":
        if rank == odd:
            dist.all_reduce(value, group=pair)
    if how == "mismatch-root":
        collect(rank, odd if rank == odd else 0)
    if how == "mismatch-groups":
        halves = [list(range(world // 2)), list(range(world // 2, world))]
        for half in reversed(halves) if rank == odd else halves:
            dist.new_group(half)
    if how == "one-way":
        receive(value, (rank + 1) % world)
    if rank == odd:
        if how == "not-entered":
            save_checkpoint()
        elif how == "busy":
            compute()
        elif how == "mismatch-operation":
            dist.barrier()
        elif how == "filesystem":
            read_file()
        elif how == "lock":
            lock()
        elif how == "lock-file":
            lock_file()
        elif how == "dataloader":
            load()
        elif how == "stopped":
            os.kill(os.getpid(), 19)
        elif how == "dead":
            if not os.fork():  # keeps the connections open, as workers of a data loader do
                time.sleep(600)
            os._exit(0)
        elif how == "exiting":
            threading.Thread(target=time.sleep, args=(600,)).start()
            return
    if how == "network-forming":
        while not os.path.exists("cut"):
            time.sleep(0.5)
            print("waits", flush=True)  # output is progress
        dist.new_group([0, odd])
    if how == "network":
        while True:
            dist.all_reduce(value)
            time.sleep(0.05)
    dist.all_reduce(value)
    if how == "mismatch-order" and rank == 0:
        dist.all_reduce(value, group=pair)
    dist.barrier()


if __name__ == "__main__":
    train(sys.argv[1])
'''
FORKS = """\
import os, sys
import train
for how in sys.argv[1:]:
    pids = []
    for rank in range(4):
        pid = os.fork()
        if not pid:
            os.environ.update(RANK=str(rank), MASTER_PORT=os.environ["MASTER_PORT"])
            train.train(how)
            sys.exit()
        pids.append(pid)
    print(*pids, flush=True)
    sys.stdin.readline()
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One way to hang, and what the verdict must be."""

    how: str
    code: str
    function: str = ""
    """Where the rank that the others wait for is; "": no such place."""
    all_ranks: bool = False
    """Whether all ranks are named, as each waits for another one or for none."""


CASES = (
    Case("not-entered", "not-entered", "save_checkpoint"),
    Case("busy", "busy", "compute"),
    Case("mismatch-operation", "mismatch", "train"),
    Case("mismatch-order", "mismatch", "train"),
    Case("mismatch-root", "mismatch", "collect"),
    Case("mismatch-groups", "mismatch"),
    Case("one-way", "one-way", "receive", all_ranks=True),
    Case("filesystem", "filesystem", "read_file"),
    Case("lock", "lock", "lock"),
    Case("lock-file", "lock", "take"),
    Case("dataloader", "dataloader", "load"),
    Case("stopped", "stopped"),
    Case("dead", "dead"),
    Case("exiting", "exiting"),
    Case("slow", "slow", "compute", all_ranks=True),
)
NETWORK = Case("network", "network")
"""Needs nodes: one of them accepts no packets but those of SSH."""
FORMING = Case("network-forming", "network")
"""The same, and then a group is formed of a rank on that node and one on another node."""


def odd(world: int) -> int:
    """Return the rank that hangs."""
    return world // 2 + 1


# ------------------------------------------------------------ recording

_ERROR = re.compile(r"^(?:\[rank\d+\]: )?(\w*Error: .*)", re.MULTILINE)
_SOURCE = re.compile(r"\[/[^\]]*\] ")
"""Where in PyTorch's sources an error was raised."""
WAIT = 6.0
"""Seconds until all ranks of a case wait."""
GROUP_TIMEOUT, PATIENCE = 10, 30
"""Seconds: the timeout of PyTorch's process groups, and how long its errors are waited for."""


@contextmanager
def forked(how: str, **variables: str) -> Iterator[tuple[Path, list[int], Path]]:
    """Run a case with 4 ranks, forked from one process that has imported torch; yield their
    directory, processes and the file with what they print."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        (directory / "train.py").write_text(JOB)
        (directory / "forks.py").write_text(FORKS)
        environment = {**os.environ, **rank_hooks.arm(place, {}), "RANK": "0", "WORLD_SIZE": "4"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29731", **variables}
        with (directory / "errors").open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "forks.py", how],
                cwd=directory,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        for _ in pids:
            process.stdout.readline()
        try:
            yield directory, pids, directory / "errors"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def record(case: Case) -> dict[str, Any]:
    """Return what 4 ranks on this machine answer."""
    with forked(case.how) as (directory, pids, _):
        time.sleep(WAIT)
        by_rank = dict(enumerate(pids))
        ranks = {rank: pid for rank, pid in by_rank.items() if processes.alive([pid])}
        return {
            "time": time.time(),
            "collectives": collectives.collect(ranks, str(directory), "full", 5.0),
            "stacks": stacks.collect(ranks, 10.0),
            "ended": [rank for rank in by_rank if rank not in ranks],
        }


def alone(case: Case) -> str:
    """Return the first error of PyTorch in a case; "": none."""
    with forked(case.how, GROUP_TIMEOUT=str(GROUP_TIMEOUT)) as (_, _, errors):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = _ERROR.search(errors.read_text())
            if found:
                return found[1]
            time.sleep(0.5)
    return ""


# ------------------------------------------------------------ the page

HEAD = """\
# What is reported when a training hangs

Generated by `python -m tests.testbed.hangs` from a run of the tests ({dates}): four virtual nodes
with real sshd, two ranks each, PyTorch with gloo on CPUs, `--hang-timeout {limit:g}`. The rank that
hangs is {odd}. "After" is the time from the hang to the verdict, with 8 ranks and with 64: the same
nodes with 16 ranks each, and rank {odd_of_64} hangs. Beside it is what PyTorch alone reports with 4
ranks, when the timeout of its process groups is over: 30 minutes with gloo and 10 with NCCL by
default, here {timeout} s.

With NCCL, less has been tried: [see below](#over-nccl-on-a-gpu). `gpu` has been tested with
recorded kernel logs.

| the rank | code | after, 8 ranks | after, 64 ranks | dslaunch | PyTorch alone |
|---|---|---|---|---|---|
"""
HEAD_REPORTED = """
## Hangs as users reported them

Trainings made from public reports, or that break a documented rule, with two ranks on each of two
nodes, and the last {later} on each of four. Where no code is given, gloo ends a rank instead, and
NCCL would hang. In their first run, before any rule was changed for them, {first_right} of the
first {first} had the right ranks and code, and {later_right} of the last {later}.

| training | code | ranks | dslaunch |
|---|---|---|---|
"""
FIRST_RIGHT, LATER_RIGHT = 8, 10
"""Of the reported hangs, those that were named correctly before any rule was changed for them: of
those on two nodes, which came first, and of those on four."""
MEANINGS = {
    "not-entered": "sleeps in other code",
    "busy": "computes in a loop that does not end",
    "mismatch-operation": "calls another collective",
    "mismatch-order": "calls collectives of two groups in another order",
    "mismatch-root": "gathers to itself, and the others to rank 0",
    "mismatch-groups": "makes two process groups in another order",
    "one-way": "waits for a transfer that it has begun to receive, as all others do",
    "filesystem": "waits for a file",
    "lock": "waits for a lock",
    "lock-file": "waits for a lock in a file",
    "dataloader": "waits for a worker of its data loader",
    "stopped": "is stopped by SIGSTOP",
    "dead": "has exited with 0; a child holds its connections",
    "exiting": "has ended its program; a thread that is no daemon continues",
    "slow": "computes, as all others do",
    "network": "is on a node that packets do not reach",
    "network-forming": "is on such a node, and forms a process group with rank 0",
}
LIMIT = 10.0
"""Seconds of `--hang-timeout` in the tests."""


def page(rows: list[dict[str, Any]], found: dict[str, str]) -> str:
    """Return the table as Markdown."""
    measured = [row for row in rows if "how" in row]
    by_how = {row["how"]: row for row in measured if row["ranks"] == 8}
    of_64 = {row["how"]: row for row in measured if row["ranks"] == 64}
    dates = sorted({row["date"] for row in measured})
    head = HEAD.format(
        dates=" to ".join(dict.fromkeys((dates[0], dates[-1]))),
        limit=LIMIT,
        odd=odd(8),
        odd_of_64=odd(64),
        timeout=GROUP_TIMEOUT,
    )
    cases = [case for case in (*CASES, NETWORK, FORMING) if case.how in by_how]
    table = "".join(_row(by_how[case.how], of_64.get(case.how), found) for case in cases)
    further = further_hangs.section(further_hangs.recorded())
    over_nccl = section(RECORDED.read_text("utf-8").splitlines())
    return head + table + _reported(rows) + further + over_nccl


def _reported(rows: list[dict[str, Any]]) -> str:
    """Return the table of the hangs that users have reported."""
    by_name = {row["reported"]: row for row in rows if "reported" in row}
    those = [each for each in REPORTED if each.name in by_name]
    if not those:
        return ""
    first = sum(each.nodes == 2 for each in REPORTED)
    head = HEAD_REPORTED.format(
        first=first,
        first_right=FIRST_RIGHT,
        later=len(REPORTED) - first,
        later_right=LATER_RIGHT,
    )
    return head + "".join(_reported_row(each, by_name[each.name]) for each in those)


def _reported_row(reported: Reported, row: dict[str, Any]) -> str:
    return f"| {' | '.join(cells(reported, row))} |\n"


def _row(row: dict[str, Any], of_64: dict[str, Any] | None, found: dict[str, str]) -> str:
    how = row["how"]
    said = _SOURCE.sub("", found.get(how, "not measured")) or "nothing"
    after = [f"{each['after']} s" if each is not None else "not measured" for each in (row, of_64)]
    cells = (MEANINGS[how], f"`{row['code']}`", *after, row["said"], said)
    return f"| {' | '.join(cells)} |\n"


def main() -> None:
    """Do what the first argument names."""
    what, *files = sys.argv[1:]
    if what == "page":
        rows = [json.loads(line) for line in Path(files[0]).read_text().splitlines()]
        sys.stdout.write(page(rows, json.loads(Path(files[1]).read_text())))
        return
    work = {"record": record, "alone": alone}[what]
    file, *names = files
    found = json.loads(Path(file).read_text()) if names else {}
    found |= {case.how: work(case) for case in CASES if case.how in names or not names}
    Path(file).write_text(_written(found))


def _written(found: dict[str, Any]) -> str:
    """Return JSON with a line for what all ranks answer to one question."""
    cases = []
    for how, told in found.items():
        if isinstance(told, dict):
            lines = ",\n".join(f'  "{name}": {json.dumps(each)}' for name, each in told.items())
            cases.append(f' "{how}": {{\n{lines}\n }}')
        else:
            cases.append(f' "{how}": {json.dumps(told)}')
    return "{\n" + ",\n".join(cases) + "\n}\n"


if __name__ == "__main__":
    main()
