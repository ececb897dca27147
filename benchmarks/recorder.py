"""What the recorder of collectives costs a training.

    python -m benchmarks.recorder [PAIRS]

A rank makes small all-reduces with gloo, once armed, as in a run, and asked for its numbers every
second, and once without the recorder. It is alone in its process group: what is recorded is the
same with any number of ranks, and waiting for others is most of the noise. Both jobs take turns, in
changing order and for a few milliseconds, so that what else the machine does hits both. What is
compared is the CPU time of all threads for one collective, as a median of many turns. Processes of
the same program differ by more than that: several pairs of them are measured. Prints what recording
a collective costs, and its share of some steps. The goal: less than 1 % of a step.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from statistics import mean, median, stdev

from dslaunch.node import collectives, rank_hooks

COLLECTIVES, TURNS = 500, 40
"""Of one turn; of one process."""
ASKED_EVERY = 1.0
"""Seconds; a run asks every 5."""
WITHOUT = {"TORCH_FR_BUFFER_SIZE": "0"}
"""Turns the recorder off, which newer PyTorch turns on by itself."""
STEPS = ((10, 0.011), (20, 0.2), (100, 0.5), (500, 2.0))
"""Collectives of a step, and its seconds."""
TRAIN = f"""
import sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
gradient = torch.ones(1000)
def turn():
    for _ in range({COLLECTIVES}):
        dist.all_reduce(gradient)
turn()
print("up", flush=True)
for _ in sys.stdin:
    began = time.process_time()
    turn()
    print((time.process_time() - began) / {COLLECTIVES}, flush=True)
"""


class Job:
    """A rank that communicates for one turn at a time."""

    def __init__(self, port: int, variables: dict[str, str]) -> None:
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        group |= {"WORLD_SIZE": "1", "RANK": "0"}
        self.rank = subprocess.Popen(
            [sys.executable, "-c", TRAIN],
            env={**os.environ, **variables, **group},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "up\n"

    def _line(self) -> str:
        assert self.rank.stdout is not None
        return self.rank.stdout.readline()

    def turn(self) -> float:
        """Return the CPU seconds of a collective."""
        assert self.rank.stdin is not None
        self.rank.stdin.write("\n")
        self.rank.stdin.flush()
        return float(self._line())

    def end(self) -> None:
        """End the rank."""
        self.rank.communicate()


def ask_again_and_again(job: Job, directory: str, over: threading.Event) -> None:
    """Ask the rank for its numbers, as an agent does."""
    pids = {0: job.rank.pid}
    while not over.wait(ASKED_EVERY):
        told = collectives.collect(pids, directory, "status", ASKED_EVERY)
        assert all(each["state"] == collectives.ANSWERED for each in told.values()), told


def measured(turns: int) -> tuple[float, float]:
    """Return the CPU seconds of a collective, armed and plain, of one pair of processes."""
    over = threading.Event()
    with tempfile.TemporaryDirectory() as directory:
        armed, plain = Job(29741, rank_hooks.arm(directory, {})), Job(29742, WITHOUT)
        asking = threading.Thread(target=ask_again_and_again, args=(armed, directory, over))
        asking.start()
        taken: dict[Job, list[float]] = {armed: [], plain: []}
        for number in range(turns):
            for job in (armed, plain) if number % 2 else (plain, armed):
                taken[job].append(job.turn())
        over.set()
        asking.join()
        armed.end()
        plain.end()
    return median(taken[armed]), median(taken[plain])


def main() -> None:
    """Measure pairs of processes, and print the figures."""
    differences = []
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 8):
        armed, plain = measured(TURNS)
        differences.append(armed - plain)
        times = f"armed {armed * 1e6:.1f} us, plain {plain * 1e6:.1f} us"
        print(f"CPU time of a collective: {times}", flush=True)
    cost, error = mean(differences), stdev(differences) / len(differences) ** 0.5
    print(f"recording one costs {cost * 1e6:.1f} us, +- {error * 1e6:.1f} us")
    for count, seconds in STEPS:
        share, off = (count * each / seconds * 100 for each in (cost, error))
        step = f"{count:4} collectives in a step of {seconds * 1e3:6.0f} ms"
        print(f"{step}: {share:.2f} +- {off:.2f} %")


if __name__ == "__main__":
    main()
