"""Trainings that hang, each in one way: data for the judge's tests and for `test_hangs`.

`python -m tests.testbed.hangs record FILE` runs each of them with 4 ranks on this machine and
records what their processes and their recorders answer, for the unit tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dslaunch.node import collectives, rank_hooks, stacks

JOB = '''\
"""Trains in some steps, and hangs in the way that its first argument names."""
import os, sys, threading, time
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


def load():
    for _ in torch.utils.data.DataLoader(Stuck(), num_workers=1):
        pass


def train(how):
    dist.init_process_group("gloo")
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
        elif how == "dataloader":
            load()
        elif how == "stopped":
            os.kill(os.getpid(), 19)
        elif how == "dead":
            if not os.fork():  # keeps the connections open, as workers of a data loader do
                time.sleep(600)
            os._exit(0)
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
            os._exit(0)
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


CASES = (
    Case("not-entered", "not-entered", "save_checkpoint"),
    Case("busy", "busy", "compute"),
    Case("mismatch-operation", "mismatch", "train"),
    Case("mismatch-order", "mismatch", "train"),
    Case("filesystem", "filesystem", "read_file"),
    Case("lock", "lock", "lock"),
    Case("dataloader", "dataloader", "load"),
    Case("stopped", "stopped"),
    Case("dead", "dead"),
    Case("slow", "slow", "compute"),
)


def odd(world: int) -> int:
    """Return the rank that hangs."""
    return world // 2 + 1


# ------------------------------------------------------------ recording


def record() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what 4 ranks on this machine answer in each case."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        (directory / "train.py").write_text(JOB)
        (directory / "forks.py").write_text(FORKS)
        environment = {**os.environ, **rank_hooks.arm(place, {}), "RANK": "0", "WORLD_SIZE": "4"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29731"}
        for case in CASES:
            process = subprocess.Popen(
                [sys.executable, "forks.py", case.how],
                cwd=directory,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            assert process.stdout is not None
            pids = [int(word) for word in process.stdout.readline().split()]
            for _ in pids:
                process.stdout.readline()
            time.sleep(6)
            by_rank = dict(enumerate(pids))
            ranks = {rank: pid for rank, pid in by_rank.items() if stacks.processes.alive([pid])}
            yield (
                case.how,
                {
                    "time": time.time(),
                    "collectives": collectives.collect(ranks, place, "full", 5.0),
                    "stacks": stacks.collect(ranks, 10.0),
                    "ended": [rank for rank in by_rank if rank not in ranks],
                },
            )
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def main() -> None:
    """Write the recorded answers."""
    found = dict(record())
    Path(sys.argv[2]).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
