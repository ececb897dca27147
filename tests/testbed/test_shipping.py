"""Code that nodes hand on to each other, over real sshd."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.testbed.project import recorded_events
from tests.testbed.vcluster import VirtualCluster

CLUSTER = f"""
launcher: direct
python: {sys.executable}
storage: {{workdir: /root/work}}
nodes: [{{host: 'node[1-4]', slots: 1}}]
"""
SIZE = 9 * 2**20
"""Bytes for each node; those for four are enough to be handed on."""
LINKS = "awk '/eth0/ {print $10}' /proc/net/dev"
"""Prints the bytes that a machine has sent."""


@pytest.fixture
def code(virtual_cluster: Callable[..., VirtualCluster]) -> Iterator[VirtualCluster]:
    """Four nodes, and code that they lack on the control machine."""
    cluster = virtual_cluster(nodes=4)
    cluster.put("control", "/root/c.yaml", CLUSTER)
    cluster.put("control", "/root/code/train.py", "print('trained')\n")
    cluster.run("control", ["sh", "-c", f"head -c {SIZE} /dev/urandom >code/model.dat"], check=True)
    yield cluster


def run(cluster: VirtualCluster, *words: str) -> Any:
    command = [sys.executable, "-m", "dslaunch", "run", "--no-preflight", *words]
    return cluster.run("control", [*command, "../c.yaml", "train.py"], cwd="/root/code")


def checksum(cluster: VirtualCluster, node: str, path: str) -> str:
    return cluster.run(node, ["sha256sum", path], check=True).stdout.split()[0]


def test_code_reaches_all_nodes_while_the_launcher_sends_it_once(code: VirtualCluster) -> None:
    before = int(code.run("control", ["sh", "-c", LINKS], check=True).stdout)
    done = run(code)
    sent = int(code.run("control", ["sh", "-c", LINKS], check=True).stdout) - before
    assert done.returncode == 0, done.stderr
    assert SIZE < sent < 2 * SIZE
    wanted = checksum(code, "control", "/root/code/model.dat")
    for node in code.names:
        assert checksum(code, node, "/root/work/model.dat") == wanted
    assert [each for each in recorded_events(code) if each["kind"] == "resent"] == []
    assert code.leftovers() == {}


def test_a_node_that_cannot_log_in_to_the_next_costs_one_more_copy(code: VirtualCluster) -> None:
    code.run("node2", ["sh", "-c", "rm ~/.ssh/id_*"], check=True)
    before = int(code.run("control", ["sh", "-c", LINKS], check=True).stdout)
    done = run(code, "--transport", "tree")
    sent = int(code.run("control", ["sh", "-c", LINKS], check=True).stdout) - before
    assert done.returncode == 0, done.stderr
    assert 2 * SIZE < sent < 3 * SIZE
    [event] = [each for each in recorded_events(code) if each["kind"] == "resent"]
    assert (event["receivers"], event["senders"]) == ("node3", "node2")
    assert event["failure"] == "authentication"
    assert code.leftovers() == {}


@pytest.mark.long  # links are slowed down, so that there is something to interrupt
def test_a_launcher_that_is_killed_leaves_no_code_and_no_login(code: VirtualCluster) -> None:
    for machine in ("control", *code.names):
        code.fault(machine, "rate", "10mbit")
    words = ["run", "--no-preflight", "--reconnect-timeout", "3", "../c.yaml", "train.py"]
    command = [sys.executable, "-m", "dslaunch", *words]
    with code.popen("control", command, cwd="/root/code") as running:
        deadline = time.monotonic() + 300
        while not any(process.argv[0].endswith("/ssh") for process in code.processes("node3")):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        running.send_signal(signal.SIGKILL)
        running.communicate()
    assert code.leftovers(within=150) == {}
    for node in code.names:
        left = code.run(node, ["find", "/root/work", "-type", "f"], check=True)
        assert left.stdout == ""
