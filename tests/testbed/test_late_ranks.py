"""A rank that is slower by a tenth is named by the times of its collectives, and no other is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.testbed.project import Project

TRAINING = """\
import sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
slow, begin, steps = map(int, sys.argv[1:])
buckets = [torch.ones(1000) for _ in range(3)]
for step in range(steps):
    longer = 1.1 if dist.get_rank() == slow and step >= begin else 1
    pending = []
    for at, bucket in enumerate(buckets):  # as DDP: each begins while the next are computed
        time.sleep(STEP * (0.25 if at else 0.5) * longer)
        until = time.thread_time() + WORK / len(buckets)
        while time.thread_time() < until:
            pass
        pending.append(dist.all_reduce(bucket, async_op=True))
    for work in pending:
        work.wait()
    if dist.get_rank() == 0:
        print("step", step, "time", time.time(), flush=True)
"""
STEP = 0.3
"""Seconds of a step. Ranks sleep instead of computing: all share the CPUs of one machine."""
NONE = -1
BEGIN = 40


def train(project: Project, slow: int, steps: int, work: float = 0.0) -> list[dict[str, Any]]:
    """Train on all ranks; return the events `slow`, each with the last `step` before it. `work`:
    seconds of CPU time of each step."""
    project.write("train.py", TRAINING.replace("STEP", str(STEP)).replace("WORK", str(work)))
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
@pytest.mark.parametrize(
    "nodes",
    # two ranks a node; each imports torch
    [2, pytest.param(4, marks=pytest.mark.long)],
)
def test_a_rank_that_is_slower_by_a_tenth_is_named_within_50_steps(
    project: Project, nodes: int
) -> None:
    project.describe(f"nodes: [{{host: 'node[1-{nodes}]', slots: 2}}]")
    (event,) = train(project, slow=3, steps=BEGIN + 55)
    (slow,) = event["slower"]
    assert (event["host"], slow["rank"], slow["host"]) == ("node2", 3, "node2")
    assert (slow["evidence"], slow["reasons"]) == ("collectives", [])
    assert 0.04 <= slow["cost"] <= 0.12
    assert BEGIN <= event["step"] <= BEGIN + 50
    status = project.cluster.run(
        "control", project.command("status", "latest", "--json"), cwd=project.path
    )
    assert json.loads(status.stdout)["slower"] == [slow]


@pytest.mark.torch
@pytest.mark.long
def test_a_cpu_limit_is_the_reason_why_the_ranks_of_a_node_are_late(project: Project) -> None:
    with fault(project, "node3", "cpu", "12"):
        events = train(project, slow=NONE, steps=100, work=0.015)
    assert {event["host"] for event in events} == {"node3"}
    named = [slow for event in events for slow in event["slower"]]
    assert {slow["rank"] for slow in named} <= {4, 5}
    assert [slow for slow in named if "cpu-limit" not in slow["reasons"]] == []


@contextmanager
def fault(project: Project, node: str, *words: str) -> Iterator[None]:
    project.cluster.fault(node, *words)
    try:
        yield
    finally:
        project.cluster.heal(node)


@pytest.mark.torch
@pytest.mark.long
@pytest.mark.parametrize("attempt", range(20))
def test_no_rank_of_a_sound_run_is_named(project: Project, attempt: int) -> None:
    assert train(project, slow=NONE, steps=100) == [], attempt
