"""Whether a rank that is slower by a tenth is named, and no other one.

    python benchmarks/late_ranks.py [STEP_SECONDS [CPU_SECONDS]]

A run on two emulated nodes with two ranks each. A step takes STEP_SECONDS (0.3), of which each rank
computes for CPU_SECONDS (0) and sleeps for the rest: all share the CPUs of this machine. All ranks
are equal for 200 steps. Then each in turn is slower by a tenth for 60 steps, and all are equal for
60 more. Prints for each slow rank after how many of its steps it was named, and which ranks were
named that were not slow. The goal: each within 50 steps, and no other one.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from dslaunch import Cluster, api
from dslaunch.cluster.model import Node, Storage
from dslaunch.launch.job import Job
from dslaunch.run.events import Event, Line

EQUAL, SLOW, PAUSE = 200, 60, 60
"""Steps before the first slow rank, of each slow rank, and after each."""
NODES, SLOTS = 2, 2
TRAINING = f"""
import sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
step_seconds, cpu_seconds = map(float, sys.argv[1:])
buckets = [torch.ones(1000) for _ in range(3)]
for step in range({EQUAL + NODES * SLOTS * (SLOW + PAUSE)}):
    turn, within = divmod(step - {EQUAL}, {SLOW + PAUSE})
    longer = 1.1 if turn == dist.get_rank() and within < {SLOW} else 1
    pending = []
    for at, bucket in enumerate(buckets):  # as DDP: each begins while the next are computed
        time.sleep((step_seconds - cpu_seconds) * (0.25 if at else 0.5) * longer)
        until = time.thread_time() + cpu_seconds / len(buckets) * longer
        while time.thread_time() < until:
            pass
        pending.append(dist.all_reduce(bucket, async_op=True))
    for work in pending:
        work.wait()
    if dist.get_rank() == 0:
        print("step", step, "time", time.time(), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Named:
    """A rank that was named as slow."""

    rank: int
    step: int
    """The last one that was finished before."""

    @property
    def after(self) -> int | None:
        """Return after how many steps of its slow ones; None: it was not slow before."""
        steps = self.step - EQUAL - self.rank * (SLOW + PAUSE)
        return steps if 0 <= steps < SLOW + PAUSE else None


def train(step_seconds: float, cpu_seconds: float, directory: Path) -> tuple[list[Named], float]:
    """Return the ranks that a run names, and the mean time of a step in seconds."""
    (directory / "train.py").write_text(TRAINING)
    nodes = tuple(
        Node(f"node{number}", tuple(range(SLOTS)), python=sys.executable) for number in range(NODES)
    )
    cluster = Cluster("bench", nodes, transport="local", storage=Storage(workdir="work"))
    arguments = (str(step_seconds), str(cpu_seconds))
    lines: list[Line] = []
    events: list[Event] = []
    run = api.run(
        cluster,
        Job("train.py", args=arguments, launcher="direct"),
        cwd=directory,
        on_line=lines.append,
        on_event=events.append,
    )
    outcome = run.wait()
    assert outcome.status == "ok", outcome.message
    found = re.findall(r"step (\d+) time ([\d.]+)", "\n".join(line.text for line in lines))
    ends = {int(step): float(end) for step, end in found}
    named = [
        Named(slow.rank, max(step for step, end in ends.items() if end <= event.time))
        for event in events
        if event.kind == "slow"
        for slow in event.slower or ()
    ]
    return named, (ends[max(ends)] - ends[0]) / max(ends)


def main() -> None:
    """Train once, and print who was named."""
    step_seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.3
    cpu_seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["DSLAUNCH_STATE"] = f"{directory}/state"
        named, seconds = train(step_seconds, cpu_seconds, Path(directory))
    load = os.getloadavg()[1]
    print(f"{time.monotonic() - began:.0f} s, {seconds:.2f} s a step, load {load:.0f}")
    for rank in range(NODES * SLOTS):
        after = next((each.after for each in named if each.rank == rank), None)
        print(f"rank {rank}:", "not named" if after is None else f"named after {after} steps")
    wrong = [each for each in named if each.after is None]
    print("named without being slow:", ", ".join(f"rank {each.rank}" for each in wrong) or "none")


if __name__ == "__main__":
    main()
