"""A rank that is slower by a tenth is named by the times of its collectives, and no other is."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.testbed.test_runs import Project, project

__all__ = ["project"]
TRAINING = """\
import sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
slow, begin, steps = map(int, sys.argv[1:])
buckets = [torch.ones(1000) for _ in range(3)]
for step in range(steps):
    longer = 1.1 if dist.get_rank() == slow and step >= begin else 1
    pending = []
    for bucket in buckets:  # as DDP: each begins while the next gradients are computed
        time.sleep(STEP / len(buckets) * longer)
        pending.append(dist.all_reduce(bucket, async_op=True))
    for work in pending:
        work.wait()
    if dist.get_rank() == 0:
        print("step", step, "time", time.time(), flush=True)
"""
STEP = 0.2
NONE = -1
BEGIN = 40


def train(project: Project, slow: int, steps: int) -> list[dict[str, Any]]:
    """Train on 8 ranks; return the events `slow`, each with the last `step` before it."""
    project.write("train.py", TRAINING.replace("STEP", str(STEP)))
    words = ("train.py", str(slow), str(BEGIN), str(steps))
    done = project.run("c.yaml", *words)
    assert project.outcome()["status"] == "ok"
    times = {
        int(step): float(time)
        for step, time in re.findall(r"step (\d+) time ([\d.]+)", done.stdout)
    }
    return [
        event | {"step": max(step for step, time in times.items() if time <= event["time"])}
        for event in project.events()
        if event["kind"] == "slow"
    ]


@pytest.mark.torch
def test_a_rank_that_is_slower_by_a_tenth_is_named_within_50_steps(project: Project) -> None:
    (event,) = train(project, slow=5, steps=BEGIN + 55)
    (slow,) = event["slower"]
    assert (event["host"], slow["rank"], slow["host"]) == ("node3", 5, "node3")
    assert (slow["evidence"], slow["reasons"]) == ("collectives", [])
    assert 0.04 <= slow["cost"] <= 0.12
    assert BEGIN <= event["step"] <= BEGIN + 50
    status = project.cluster.run(
        "control", project.command("status", "latest", "--json"), cwd=project.path
    )
    assert json.loads(status.stdout)["slower"] == [slow]


@pytest.mark.torch
@pytest.mark.long
@pytest.mark.parametrize("attempt", range(20))
def test_no_rank_of_a_sound_run_is_named(project: Project, attempt: int) -> None:
    assert train(project, slow=NONE, steps=100) == [], attempt
