"""What the recorder of collectives costs a training, in one run.

    python benchmarks/recorder.py [ROUNDS]

Two ranks train on this machine with gloo, once armed, as in a run, and asked for their numbers
every second, and once without. Both jobs take turns, so that what else the machine does hits both.
A step computes for some 10 ms and has 10 collectives. Prints the median and the best time of a
step: the CPU time of one rank with all of its threads, which other programs on the machine change
little, and the time on the clock. The goal: less than 1 % of CPU time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from statistics import mean, median

from dslaunch.node import collectives, rank_hooks

STEPS = 20
"""Of one turn."""
ASKED_EVERY = 1.0
"""Seconds; a run asks every 5."""
TRAIN = f"""
import sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
weights, gradient = torch.randn(400, 400), torch.ones(1000)
def step():
    for _ in range(10):
        torch.mm(weights, weights)
        dist.all_reduce(gradient)
for _ in range({STEPS}):
    step()
print("up", flush=True)
for _ in sys.stdin:
    began, computed = time.perf_counter(), time.process_time()
    for _ in range({STEPS}):
        step()
    clock, cpu = time.perf_counter() - began, time.process_time() - computed
    print(cpu / {STEPS}, clock / {STEPS}, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """Seconds of a step."""

    cpu: float
    """Of one rank, on average."""
    clock: float
    """Of the slower rank."""


class Job:
    """Two ranks that train for one turn at a time."""

    def __init__(self, port: int, variables: dict[str, str]) -> None:
        common = {**os.environ, **variables, "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", TRAIN],
                env={**common, "MASTER_PORT": str(port), "RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        for rank in self.ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "up\n"

    def turn(self) -> Turn:
        """Train, and return how long a step took."""
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.write("\n")
            rank.stdin.flush()
        told = [rank.stdout.readline().split() for rank in self.ranks if rank.stdout]
        cpu = mean(float(cpu) for cpu, _ in told)
        return Turn(cpu, max(float(clock) for _, clock in told))

    def end(self) -> None:
        """End the ranks."""
        for rank in self.ranks:
            rank.communicate()


def ask_again_and_again(job: Job, directory: str, over: threading.Event) -> None:
    """Ask the ranks for their numbers, as an agent does."""
    pids = {number: rank.pid for number, rank in enumerate(job.ranks)}
    while not over.wait(ASKED_EVERY):
        told = collectives.collect(pids, directory, "status", ASKED_EVERY)
        assert all(each["state"] == collectives.ANSWERED for each in told.values()), told


def main() -> None:
    """Measure in turns, and print the figures."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    over = threading.Event()
    with tempfile.TemporaryDirectory() as directory:
        armed = Job(29741, rank_hooks.arm(directory, {}))
        plain = Job(29742, {})
        asking = threading.Thread(target=ask_again_and_again, args=(armed, directory, over))
        asking.start()
        times = [(armed.turn(), plain.turn()) for _ in range(rounds)]
        over.set()
        asking.join()
        armed.end()
        plain.end()
    for what in ("cpu", "clock"):
        armed_times = [getattr(with_it, what) for with_it, _ in times]
        plain_times = [getattr(without, what) for _, without in times]
        for name, figure in (("median", median), ("best", min)):
            with_it, without = figure(armed_times) * 1e3, figure(plain_times) * 1e3
            more = (with_it / without - 1) * 100
            values = f"armed {with_it:7.3f} ms  plain {without:7.3f} ms  {more:+.1f} %"
            print(f"{what:5}  {name:6}  {values}")


if __name__ == "__main__":
    main()
