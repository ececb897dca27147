"""What the recorder of collectives costs a training, in one run.

    python benchmarks/recorder.py [ROUNDS]

Two ranks train on this machine with gloo, once armed, as in a run, and asked for their numbers
every second, and once without. Both jobs take turns, so that what else the machine does hits both.
A step computes for some 10 ms and has 10 collectives. Prints the median and the best time of a
step; the goal: less than 1 %.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from statistics import median

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
    began = time.perf_counter()
    for _ in range({STEPS}):
        step()
    print((time.perf_counter() - began) / {STEPS}, flush=True)
"""


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

    def turn(self) -> float:
        """Train, and return the seconds of a step."""
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.write("\n")
            rank.stdin.flush()
        return max(float(rank.stdout.readline()) for rank in self.ranks if rank.stdout)

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
    for name, figure in (("median", median), ("best", min)):
        with_it, without = (figure(column) * 1e3 for column in zip(*times, strict=True))
        more = (with_it / without - 1) * 100
        print(f"{name:6}  armed {with_it:7.2f} ms  plain {without:7.2f} ms  {more:+.1f} %")


if __name__ == "__main__":
    main()
