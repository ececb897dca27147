"""Trainings on virtual nodes of which one rank is slower by a tenth, or none, and who is named.

- `python -m tests.testbed.late_ranks run FILE [COUNT]` runs those of TRIALS that FILE does not have
  yet, at most COUNT, and appends a line of JSON for each.
- `python -m tests.testbed.late_ranks page` prints docs/reference/slow-ranks.md from RECORDED.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from tests.testbed.project import Project
from tests.testbed.vcluster import VirtualCluster

RECORDED = Path(__file__).with_name("late_ranks.jsonl")
"""What the runs have recorded of which the page is made."""
TRAINING = """\
import sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
slow, begin, steps = map(int, sys.argv[1:4])
slower, step_seconds, cpu_seconds = map(float, sys.argv[4:])
turn = dist.get_rank() / dist.get_world_size()
buckets = [torch.ones(1000) for _ in range(3)]
for step in range(steps):
    longer = 1 + slower if dist.get_rank() == slow and step >= begin else 1
    pending = []
    for at, bucket in enumerate(buckets):  # as DDP: each begins while the next are computed
        asleep = (step_seconds - cpu_seconds) * (0.25 if at else 0.5) * longer
        time.sleep(asleep * turn)
        until = time.thread_time() + cpu_seconds / len(buckets) * longer
        while time.thread_time() < until:
            pass
        time.sleep(asleep * (1 - turn))
        pending.append(dist.all_reduce(bucket, async_op=True))
    for work in pending:
        work.wait()
    if dist.get_rank() == 0:
        print("step", step, "time", time.time(), flush=True)
"""
"""All ranks share the CPUs of one machine, so they compute one after the other and sleep for the
rest of a step. If all computed at the same time, each would wait for a CPU, and a slow rank, which
comes later, would find a free one: it would be late by less than its share."""
NONE = -1
BEGIN = 40
"""Steps before a rank becomes slow."""
SLOW_STEPS = 100
"""Steps of a slow rank."""
SOUND_SECONDS = 40
"""How long a run without a slow rank trains, without its start."""
GOAL = 50
"""Steps within which a rank that is slower by a tenth is to be named."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One training, in which one rank becomes slower, or none."""

    nodes: int
    slots: int
    """Ranks of a node."""
    seconds: float
    """Of a step."""
    cpu_share: float = 0.0
    """Share of a step for which a rank computes."""
    slow: int | None = None
    slower: float = 0.1
    """By which share of a step."""
    attempt: int = 1

    @property
    def name(self) -> str:
        """Return a name of its own."""
        kind = "sound" if self.slow is None else f"rank{self.slow}"
        cpu = f"-cpu{self.cpu_share:.0%}" if self.cpu_share else ""
        return f"{kind}-{self.nodes}x{self.slots}-{self.seconds:g}s{cpu}-{self.attempt}"

    @property
    def steps(self) -> int:
        """Return how many steps it has."""
        if self.slow is None:
            return round(SOUND_SECONDS / self.seconds)
        return BEGIN + SLOW_STEPS


LAYOUTS = ((2, 2, 0.0), (4, 2, 0.0), (2, 1, 0.8), (4, 2, 0.1))
"""Nodes, ranks of a node, and the share of a step for which a rank computes. Two ranks have a CPU
each, so that they can compute for most of a step."""
SECONDS = (0.3, 0.2, 0.1)
"""Of a step."""
SOUND = tuple(
    Trial(nodes, slots, seconds, cpu_share, attempt=attempt)
    for attempt in (1, 2)
    for seconds, (nodes, slots, cpu_share) in product(SECONDS, LAYOUTS)
)
SLOW = tuple(
    replace(trial, slow=number % (trial.nodes * trial.slots))
    for number, trial in enumerate(SOUND[: len(SECONDS) * len(LAYOUTS)], start=1)
)
TRIALS = (*SLOW, *SOUND)
IRREGULAR_TRAINING = """\
import random, sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
usual = 0.2
own, common = random.Random(rank), random.Random(world)
def seconds(step):
    SECONDS
for step in range(int(sys.argv[1])):
    time.sleep(seconds(step))
    dist.all_reduce(torch.ones(1000))
dist.destroy_process_group()  # gloo's threads may end the process otherwise (pytorch#179291)
"""


@dataclass(frozen=True, slots=True)
class Irregular:
    """A sound training with 8 ranks, of which steps take unlike long."""

    name: str
    seconds: str
    """Body of the function that returns how long a rank computes before its collective."""


IRREGULAR = (
    Irregular(
        "all ranks evaluate after every 20 steps",
        "return usual + (1.5 + 0.2 * own.random() if step % 20 == 19 else 0)",
    ),
    Irregular(
        "rank 0 saves a checkpoint after every 40 steps",
        "return usual + (1.0 if step % 40 == 39 and rank == 0 else 0)",
    ),
    Irregular(
        "rank 0 writes its log after every 10 steps",
        "return usual + (0.1 if step % 10 == 9 and rank == 0 else 0)",
    ),
    Irregular("sequences of unlike lengths", "return usual * own.uniform(0.4, 1.6)"),
    Irregular(
        "batches of unlike lengths, the same on all ranks",
        "return usual * common.uniform(0.4, 1.6) * own.uniform(0.95, 1.05)",
    ),
    Irregular(
        "a loader is late in one of 20 steps",
        "return usual * (3 if own.random() < 0.05 else 1)",
    ),
    Irregular(
        "each rank in turn is slower for 5 steps",
        "return usual * (1.2 if step // 5 % world == rank else 1)",
    ),
    Irregular(
        "four micro-batches to a step",
        "return sum(usual / 4 * own.lognormvariate(0, 0.3) for _ in range(4))",
    ),
)
IRREGULAR_STEPS = 240


def train_irregularly(project: Project, irregular: Irregular) -> list[int]:
    """Train with irregular steps, and return the ranks that were named. The run must succeed."""
    project.describe("nodes: [{host: 'node[1-4]', slots: 2}]")
    project.write("train.py", IRREGULAR_TRAINING.replace("SECONDS", irregular.seconds))
    done = project.run("c.yaml", "train.py", str(IRREGULAR_STEPS), timeout=600)
    assert project.outcome()["status"] == "ok", done.stderr
    events = [event for event in project.events() if event["kind"] == "slow"]
    return [slow["rank"] for event in events for slow in event["slower"]]


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training has shown."""

    events: tuple[Mapping[str, Any], ...]
    """The events `slow`, each with the last `step` that was finished before it."""
    step_seconds: float
    """Median time of a step."""

    @property
    def named(self) -> list[tuple[int, int]]:
        """Return the ranks that were named, each with the step after which it was."""
        return [(slow["rank"], event["step"]) for event in self.events for slow in event["slower"]]


def train(project: Project, trial: Trial) -> Trained:
    """Train as a trial describes, with the whole program. The run must succeed."""
    project.describe(f"nodes: [{{host: 'node[1-{trial.nodes}]', slots: {trial.slots}}}]")
    project.write("train.py", TRAINING)
    slow = NONE if trial.slow is None else trial.slow
    cpu_seconds = trial.cpu_share * trial.seconds
    numbers = (slow, BEGIN, trial.steps, trial.slower, trial.seconds, cpu_seconds)
    done = project.run("c.yaml", "train.py", *map(str, numbers), timeout=600)
    assert project.outcome()["status"] == "ok", done.stderr
    found = re.findall(r"step (\d+) time ([\d.]+)", done.stdout)
    ends = {int(step): float(end) for step, end in found}
    events = [
        {**event, "step": max(step for step, end in ends.items() if end <= event["time"])}
        for event in project.events()
        if event["kind"] == "slow"
    ]
    return Trained(
        events=tuple(events),
        step_seconds=median(ends[step + 1] - ends[step] for step in range(trial.steps - 1)),
    )


# ---------------------------------------------------------------- recording


def recorded(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; none if there is no such file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(path: Path, count: int) -> None:
    """Run trials that a file does not have yet, at most so many, and append a row for each."""
    known = {row["trial"] for row in recorded(path)}
    missing = [trial for trial in TRIALS if trial.name not in known][:count]
    with (
        tempfile.TemporaryDirectory() as directory,
        VirtualCluster(nodes=4, directory=Path(directory)) as cluster,
    ):
        for trial in missing:
            trained = train(Project(cluster, f"/root/{trial.name}"), trial)
            row = {
                "trial": trial.name,
                "date": datetime.now(UTC).date().isoformat(),
                "named": trained.named,
                "step_seconds": round(trained.step_seconds, 3),
                "load": round(os.getloadavg()[0], 1),
            }
            with path.open("a") as file:
                file.write(f"{json.dumps(row)}\n")


# ---------------------------------------------------------------- the page

HEAD = """\
# Ranks that are slower by a tenth

Generated by `python -m tests.testbed.late_ranks` from runs of the whole program ({dates}): virtual
nodes with real sshd, PyTorch with gloo on the 2 CPUs of one machine. "CPU" is the share of a step
for which each rank computes; for the rest it sleeps. Several ranks that share a CPU compute one
after the other. "Load" is the number of processes that used a CPU or waited for one, on average
over a minute. The
[rule](../howto/watch-a-run.md#ranks-that-are-slower-by-a-little) is described there.

## One rank becomes slower by a tenth after {begin} steps

{named} of {slow} were named within {goal} steps, {late} later, and {missed} not within {slow_steps}
steps. {wrong} other ranks were named.

| step | nodes | ranks | CPU | measured step | load | slow rank | named after | other ranks named |
|---|---|---|---|---|---|---|---|---|
"""
HEAD_SOUND = """
## All ranks are equal

In {false} of {sound} runs a rank was named. They had {steps} steps in all.

| step | nodes | ranks | CPU | measured step | load | steps | ranks named |
|---|---|---|---|---|---|---|---|
"""


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page from recorded rows; the last one of a trial counts."""
    by_trial = {row["trial"]: row for row in rows}
    slow = [(trial, by_trial[trial.name]) for trial in SLOW if trial.name in by_trial]
    sound = [(trial, by_trial[trial.name]) for trial in SOUND if trial.name in by_trial]
    after = [_named_after(trial, row) for trial, row in slow]
    dates = sorted({row["date"] for row in by_trial.values()})
    in_time = [steps is not None and steps <= GOAL for steps in after]
    head = HEAD.format(
        dates=" to ".join(dict.fromkeys((dates[0], dates[-1]))),
        begin=BEGIN,
        named=sum(in_time),
        late=sum(steps is not None and steps > GOAL for steps in after),
        missed=after.count(None),
        slow=len(slow),
        goal=GOAL,
        slow_steps=SLOW_STEPS,
        wrong=sum(len(_others_named(trial, row)) for trial, row in slow),
    )
    head_sound = HEAD_SOUND.format(
        false=sum(bool(row["named"]) for _, row in sound),
        sound=len(sound),
        steps=sum(trial.steps for trial, _ in sound),
    )
    return "".join(
        (
            head,
            *(_slow_row(trial, row) for trial, row in slow),
            head_sound,
            *(_sound_row(trial, row) for trial, row in sound),
        )
    )


def _named_after(trial: Trial, row: Mapping[str, Any]) -> int | None:
    """Return after how many slow steps the slow rank was named; None: it was not."""
    steps = [step - BEGIN for rank, step in row["named"] if rank == trial.slow and step >= BEGIN]
    return min(steps, default=None)


def _others_named(trial: Trial, row: Mapping[str, Any]) -> list[int]:
    """Return the ranks that were named and not slow then."""
    return [rank for rank, step in row["named"] if rank != trial.slow or step < BEGIN]


def _slow_row(trial: Trial, row: Mapping[str, Any]) -> str:
    after = _named_after(trial, row)
    return _row(
        *_cells(trial, row),
        str(trial.slow),
        f"{after} steps" if after is not None else "not named",
        _ranks(_others_named(trial, row)),
    )


def _sound_row(trial: Trial, row: Mapping[str, Any]) -> str:
    named = _ranks([rank for rank, _ in row["named"]])
    return _row(*_cells(trial, row), str(trial.steps), named)


def _cells(trial: Trial, row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{trial.seconds:g} s",
        str(trial.nodes),
        str(trial.nodes * trial.slots),
        f"{100 * trial.cpu_share:.0f} %",
        f"{row['step_seconds']:.2f} s",
        f"{row['load']:.0f}",
    )


def _ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks)) or "none"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def main() -> None:
    """Do what the first argument names."""
    what, *words = sys.argv[1:]
    if what == "page":
        sys.stdout.write(page(recorded(RECORDED)))
    else:
        run(Path(words[0]), int(words[1]) if len(words) > 1 else len(TRIALS))


if __name__ == "__main__":
    main()
