"""The deep tier of `dslaunch preflight` over real sshd: PyTorch and TCP from node to node, and
files; a node with a slow link is named, and nothing is left."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.testbed.vcluster import VirtualCluster

CLUSTER = f"""
nodes: [{{host: 'node[1-3]', slots: 1}}]
python: {sys.executable}
storage: {{workdir: /root/deep}}
preflight:
  limits:
    fs.write-speed: {{size: 4, warn: 0, fail: 0, growth: 0}}
    sw.dist-smoke: {{warn: 0.3, fail: 0.1}}
"""
"""These nodes share a disk, and two CPUs with whatever else is tested: their speeds differ."""


class Deep:
    """The project on control."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.cluster = cluster
        self.measured: list[str] = []
        """What standard error said while the nodes were measured."""
        cluster.run("control", ["mkdir", "-p", "/root/deep"], user="root", check=True)
        cluster.put("control", "/root/deep/c.yaml", CLUSTER)
        for node in cluster.names:
            cluster.run(node, ["mkdir", "-p", "/root/deep"], user="root", check=True)

    def findings(self, only: str, *options: str) -> dict[str, list[dict[str, Any]]]:
        """What the checks found, by check."""
        words = ["preflight", "c.yaml", "--only", only, "--json", *options]
        command = [sys.executable, "-m", "dslaunch", *words]
        done = self.cluster.run("control", command, cwd="/root/deep", timeout=300)
        assert done.stdout.startswith("{"), done.stderr
        self.measured = done.stderr.splitlines()
        found: dict[str, list[dict[str, Any]]] = {}
        for finding in json.loads(done.stdout)["findings"]:
            found.setdefault(finding["check"], []).append(finding)
        return found


@pytest.fixture
def deep(cluster4: VirtualCluster) -> Iterator[Deep]:
    yield Deep(cluster4)
    for node in (*cluster4.names, "control"):
        cluster4.run(node, ["rm", "-rf", "/root/deep"], user="root")


@pytest.mark.torch
def test_healthy_nodes_sum_up_right_and_leave_no_files(deep: Deep) -> None:
    found = deep.findings("sw.dist-smoke,fs.write-speed", "--nodes", "2")
    assert [len(found[check]) for check in ("sw.dist-smoke", "fs.write-speed")] == [1, 1], found
    (smoke,), (written,) = found["sw.dist-smoke"], found["fs.write-speed"]
    assert (smoke["level"], smoke["hosts"]) == ("pass", ["node1", "node2"]), smoke
    assert "gloo" in smoke["found"]
    assert (written["level"], written["hosts"]) == ("pass", ["node1", "node2"]), written
    assert deep.measured == [
        "measuring fs.write-speed: 3 rounds, up to 3:00",
        "measuring sw.dist-smoke: 2 rounds, up to 2:20",
    ]
    for node in deep.cluster.names:
        assert deep.cluster.run(node, ["ls", "-A", "/root/deep"]).stdout == ""


@pytest.mark.torch
def test_the_node_with_a_slow_link_is_named(deep: Deep) -> None:
    deep.cluster.fault("node2", "delay", "60")
    found = deep.findings("sw.dist-smoke,net.bandwidth")
    for check in ("sw.dist-smoke", "net.bandwidth"):
        bad = [f for f in found[check] if f["level"] != "pass"]
        assert bad and all(f["hosts"] == ["node2"] for f in bad), found[check]
        assert {f["level"] for f in bad} <= {"warn", "fail"}, found[check]
