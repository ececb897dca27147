"""What a terminal shows of a run on many nodes, over real sshd."""

from __future__ import annotations

import os
import re
import sys
import time

import pytest

from tests.testbed.test_vcluster import Start

JOB = """\
import os, sys, time
rank = int(os.environ["RANK"])
print("loading", flush=True)
while rank == 0 and not os.path.exists("/root/seen"):
    time.sleep(0.1)
if rank == 0:
    print("step 1 loss 2.5", flush=True)
"""
TIMEOUT = 300.0


@pytest.mark.parametrize("nodes", [8, pytest.param(64, marks=pytest.mark.long)])
def test_a_run_on_many_nodes_prints_few_lines_before_its_first_loss(
    virtual_cluster: Start, nodes: int
) -> None:
    cluster = virtual_cluster(nodes=nodes)
    cluster.put("control", "/root/job.py", JOB)
    cluster.put(
        "control",
        "/root/c.yaml",
        f"nodes: [{{host: 'node[1-{nodes}]', slots: 1}}]\npython: {sys.executable}\n"
        "launcher: direct\nstorage: {workdir: work}\n",
    )
    command = [sys.executable, "-m", "dslaunch", "run", "c.yaml", "job.py"]
    with cluster.popen("control", command, terminal=True, cwd="/root") as running:
        assert running.terminal is not None
        seen = read_until(running.terminal, rf"running \d+ s · {nodes}/{nodes} nodes")
        cluster.put("node1", "/root/seen", "")
        seen += read_until(running.terminal, f"{nodes} ranks on {nodes} nodes finished")
    printed = shown_lines(seen)
    first_loss = next(at for at, line in enumerate(printed) if "loss 2.5" in line)
    of_dslaunch = [line for line in printed[:first_loss] if "loading" not in line]
    assert len(of_dslaunch) < 40
    assert re.search(rf"connecting \d+ s · \d+/{nodes} nodes", seen)
    assert re.search(rf"running \d+ s · {nodes}/{nodes} nodes · {nodes} ranks", seen)


def read_until(terminal: int, pattern: str) -> str:
    """Return what a terminal receives until a pattern is in it."""
    received, deadline = b"", time.monotonic() + TIMEOUT
    while not re.search(pattern, received.decode(errors="replace")):
        assert time.monotonic() < deadline, received.decode(errors="replace")[-2000:]
        received += os.read(terminal, 65536)
    return received.decode(errors="replace")


def shown_lines(received: str) -> list[str]:
    """Return the lines that stay on the screen: what follows the last erasure of each."""
    lines = received.replace("\r\n", "\n").split("\n")
    return [line.rpartition("\r\x1b[K")[2] for line in lines]
