"""`dslaunch top` on a real training: what its nodes use, and the rank that the others wait for."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

from tests.testbed.project import Project, wait_for
from tests.testbed.scheduler import Site

TRAINING = """\
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(100_000):
    for _ in range(20):
        with model.no_sync():
            model(torch.randn(64, 256)).square().mean().backward()
    loss = model(torch.randn(64, 256)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.4f}", flush=True)
"""
SLEEPER = "import time\nprint('step 7 loss 0.5', flush=True)\ntime.sleep(600)\n"


def top(project: Project, *words: str) -> Any:
    """The result of `dslaunch top latest`."""
    command = project.command("top", *words)
    return project.cluster.run("control", command, cwd=project.path, timeout=300)


@contextmanager
def training(project: Project, script: str, seen: str) -> Iterator[None]:
    """A run whose ranks have both printed a text; stopped at the end."""
    project.write("job.py", script)
    with project.start("c.yaml", "job.py") as running:
        try:
            wait_for(running, seen, times=2)
            # a pipe that nobody reads would hold up the launcher
            reading = Thread(target=running.stdout.read)
            reading.start()
            yield
        finally:
            running.send_signal(signal.SIGINT)
            running.wait()
        reading.join()


@pytest.fixture
def pair(project: Project) -> Iterator[Project]:
    """Two nodes with a rank each."""
    project.describe("nodes: [{host: 'node[1-2]', slots: 1}]")
    yield project


def test_once_shows_every_node_and_rank_with_its_step(pair: Project) -> None:
    with training(pair, SLEEPER, "step 7"):
        found = json.loads(top(pair, "--once", "--json").stdout)
        assert [node["host"] for node in found["nodes"]] == ["node1", "node2"]
        assert [(rank["rank"], rank["host"]) for rank in found["ranks"]] == [
            (0, "node1"),
            (1, "node2"),
        ]
        assert [rank["progress"]["step"] for rank in found["ranks"]] == [7, 7]
        assert found["ranks"][1]["last_line"] == "step 7 loss 0.5"
        assert found["stragglers"] == []
        chosen = json.loads(top(pair, "--once", "--json", "--node", "node2").stdout)
        assert [node["host"] for node in chosen["nodes"]] == ["node2"]


@pytest.mark.longest
@pytest.mark.torch
def test_a_rank_on_a_node_with_a_cpu_limit_is_named(pair: Project) -> None:
    with training(pair, TRAINING, "step 3 "):
        pair.cluster.fault("node2", "cpu", "4")
        by_top = straggler_of_top(pair)
        pair.wait_for_event("slow")
        pair.cluster.heal("node2")
        status = json.loads(command_of(pair, "status", "latest", "--json").stdout)
    assert (by_top["rank"], by_top["host"]) == (1, "node2")
    assert (by_top["evidence"], by_top["reasons"]) == ("cpu", ["cpu-limit"])
    (event,) = [event for event in pair.events() if event["kind"] == "slow"]
    assert (event["host"], event["slower"]) == ("node2", [by_top])
    assert status["slower"] == [by_top]


def straggler_of_top(project: Project) -> dict[str, Any]:
    """The only rank that `dslaunch top` names, as soon as it does."""
    watching = project.command("top", "--json", "--interval", "1")
    with project.cluster.popen("control", watching, cwd=project.path) as watched:
        for line in watched.stdout:
            found: list[dict[str, Any]] = json.loads(line)["stragglers"]
            if found:
                break
        watched.send_signal(signal.SIGINT)
        watched.wait()
    (straggler,) = found
    return straggler


def command_of(project: Project, *words: str) -> Any:
    """The result of a dslaunch command."""
    return project.cluster.run("control", project.command(*words), cwd=project.path, timeout=300)


# ---------------------------------------------------------------- SLURM

UNTIL_ENOUGH = """\
import os, time
print("step 7 loss 0.5", flush=True)
while not os.path.exists("enough"):
    time.sleep(0.1)
"""


@pytest.mark.parametrize("supervised", ["false", pytest.param("true", marks=pytest.mark.long)])
def test_the_ranks_of_a_slurm_job_are_measured_and_have_stacks(site: Site, supervised: str) -> None:
    site.describe("{host: 'node[1-2]', slots: 1}", supervised=supervised)
    site.write("job.py", UNTIL_ENOUGH)
    with site.start("slurm", "c.yaml", "-l", "direct", "job.py") as running:
        number = site.submitted()
        site.says(number, "step 7 loss 0.5")
        found = json.loads(site.run("top", number, "--once", "--json").stdout)
        assert {node["host"] for node in found["nodes"]} == {"node1", "node2"}
        assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
        assert {rank["host"] for rank in found["ranks"]} == {"node1", "node2"}
        assert all(node["ranks"][0]["memory"] > 0 for node in found["nodes"])
        assert found["progress"]["step"] == 7
        stacks = json.loads(site.run("stacks", number, "--json").stdout)
        assert {host: [*ranks] for host, ranks in stacks.items()} == {
            "node1": ["0"],
            "node2": ["1"],
        }
        threads = stacks["node2"]["1"][0]["threads"]
        assert [frame["file"] for frame in threads[0]["frames"]] == ["job.py"]
        chosen = json.loads(site.run("top", number, "--once", "--json", "--node", "node2").stdout)
        assert [node["host"] for node in chosen["nodes"]] == ["node2"]
        site.write("enough", "")
        running.communicate(timeout=300)
    ended = site.run("top", number, "--once")
    assert (ended.returncode, "is not running" in ended.stderr) == (1, True)
