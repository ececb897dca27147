"""Runs and preflights over `transport: tree`: nodes log in to nodes, and every promise holds."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from secrets import token_hex
from typing import Any

import pytest

from tests.testbed.project import recorded_events
from tests.testbed.vcluster import VirtualCluster
from tests.testbed.vcluster.api import NodeProcess, Running

SHAPE = {
    "node1": "control",
    "node2": "node1",
    "node3": "node1",
    "node4": "control",
    "node5": "node4",
    "node6": "node5",
    "node7": "node4",
}
"""Who logs in to whom, of seven nodes with a fan-out of two."""
PARENTS = ("node1", "node4", "node5")
CLUSTER = f"""
transport: tree
ssh: {{tree_fanout: 2, connect_timeout: 20}}
launcher: direct
python: {sys.executable}
secrets: [TOKEN]
nodes: [{{host: 'node[1-7]', slots: 1}}]
"""
SECRET = f"of-the-tree-{token_hex(8)}"
ODD = ["a  b", "$HOME", "'\"\\", "é☃", "-n", "", "line\nline", "*"]
JOB = """
import hashlib, json, os, sys, time
client = os.environ["SSH_CONNECTION"].split()[0]
digest = hashlib.sha256(os.environ["TOKEN"].encode()).hexdigest()
print(json.dumps([os.environ["DSLAUNCH_HOST"], client, sys.argv[2:], digest]), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
sys.exit(7 if os.environ["RANK"] in sys.argv[2:] else 0)
"""
"""Shows who logged in, its arguments and the digest of its secret; waits for a file; the rank that
is named by the second argument fails."""
FLOOD = """
import os
rank = os.environ["RANK"]
for number in range(20000):
    print(rank, number, "x" * 50)
"""
PLACES = "/tmp /root /home /run /var /dev/shm /scratch"
LOOKS = f'find {PLACES} -xdev -type f -exec grep -lF -e "$1" {{}} +'


@pytest.fixture
def tree(virtual_cluster: Callable[..., VirtualCluster]) -> Iterator[VirtualCluster]:
    """Seven nodes, and a cluster file and jobs in the home directory of the control machine."""
    cluster = virtual_cluster(nodes=7)
    cluster.put("control", "/root/c.yaml", CLUSTER)
    cluster.put("control", "/root/job.py", JOB)
    cluster.put("control", "/root/flood.py", FLOOD)
    yield cluster


def start(cluster: VirtualCluster, *words: str) -> Running:
    command = [sys.executable, "-m", "dslaunch", "run", "--result", "result.json", "c.yaml", *words]
    return cluster.popen("control", command, cwd="/root", env={"TOKEN": SECRET})


def outcome(cluster: VirtualCluster) -> dict[str, Any]:
    text = cluster.run("control", ["cat", "/root/result.json"], check=True).stdout
    found: dict[str, Any] = json.loads(text)
    return found


def reconnected(cluster: VirtualCluster) -> dict[str, float]:
    """Return the nodes that were reconnected to, and after how many seconds."""
    back = (each for each in recorded_events(cluster) if each["kind"] == "back")
    return {each["host"]: each["seconds"] for each in back}


def wait_until(happened: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def wait_until_back(cluster: VirtualCluster, running: Running, *hosts: str) -> None:
    """Wait until these nodes were reconnected to. Others may have been, too: on a busy machine a
    relay may be silent for some seconds."""
    deadline = time.monotonic() + 300
    while not set(hosts) <= set(reconnected(cluster)):
        assert running.popen.poll() is None, recorded_events(cluster)
        assert time.monotonic() < deadline, recorded_events(cluster)
        time.sleep(0.1)


def wait_for_ranks(running: Running) -> list[Any]:
    """Return what the seven ranks print when they have started."""
    lines = [running.stdout.readline() for _ in SHAPE]
    assert all(lines), running.stderr.read()
    return [json.loads(line.partition("│")[2]) for line in lines]


def machines(cluster: VirtualCluster) -> dict[str, str]:
    """Return the machines by address."""
    hosts = cluster.run("control", ["cat", "/etc/hosts"], check=True).stdout
    return dict(line.split()[:2] for line in hosts.splitlines() if line.startswith("10."))


def logins_of_a_run(cluster: VirtualCluster) -> tuple[dict[str, str], str]:
    """Return from which machine each node was logged in to in a run that succeeds, and what the
    launcher has written to its error output."""
    with start(cluster, "job.py", "/shared/go") as running:
        seen = wait_for_ranks(running)
        _, errors = running.communicate()
    assert running.wait() == 0, errors
    by_address = machines(cluster)
    return {host: by_address[client] for host, client, _, _ in seen}, errors


def relay_of(cluster: VirtualCluster, node: str) -> NodeProcess:
    """Return the relay of a node: the process that has started its ssh."""
    there = {process.pid: process for process in cluster.processes(node)}
    ssh = next(process for process in there.values() if process.argv[0].endswith("/ssh"))
    return there[ssh.parent]


def stop(cluster: VirtualCluster, node: str, process: NodeProcess) -> None:
    """Stop a process for good: an agent that starts resumes our programs once."""
    state = f"/proc/{process.pid}/status"
    stops = f"kill -STOP {process.pid}; sleep 1; grep -q '^State:.T' {state}"
    while cluster.run(node, ["sh", "-c", stops]).returncode != 0:
        pass


def test_a_run_over_a_tree_has_its_arguments_and_secrets_and_relays_keep_none_of_them(
    tree: VirtualCluster,
) -> None:
    with start(tree, "job.py", "/shared/go", *ODD) as running:
        seen = wait_for_ranks(running)
        shown = [tree.processes(node) for node in PARENTS]
        kept = [tree.run(node, ["sh", "-c", LOOKS, "sh", SECRET]).stdout for node in PARENTS]
        (tree.shared / "go").touch()
        _, errors = running.communicate()
    assert running.wait() == 0, errors
    by_address = machines(tree)
    assert {host: by_address[client] for host, client, _, _ in seen} == SHAPE
    assert [arguments for _, _, arguments, _ in seen] == [ODD] * 7
    assert len({digest for _, _, _, digest in seen}) == 1
    assert kept == ["", "", ""]
    for process in (process for node in shown for process in node):
        assert SECRET not in " ".join(process.argv)
        assert "RANK" in process.environ or SECRET not in process.environ.values()
        assert "RANK" in process.environ or "$HOME" not in process.argv
    assert tree.leftovers() == {}


@pytest.mark.long  # `make test` has one run, one lost relay and one refused login over a tree
def test_the_root_cause_is_found_and_output_is_complete_behind_two_relays(
    tree: VirtualCluster,
) -> None:
    with start(tree, "flood.py") as running:
        out, errors = running.communicate()
    assert running.wait() == 0, errors
    lines = [line.partition("│")[2].split()[:2] for line in out.splitlines()]
    for rank in range(7):
        assert [int(n) for r, n in lines if r == str(rank)] == list(range(20000))
    (tree.shared / "go").touch()
    with start(tree, "job.py", "/shared/go", "5") as running:
        running.communicate()
    assert running.wait() == 7
    first = outcome(tree)["reason"]
    assert (first["host"], first["rank"], first["exit_code"]) == ("node6", 5, 7)


@pytest.mark.long  # `make test` has one run, one lost relay and one refused login over a tree
def test_preflight_over_a_tree_finds_what_it_finds_without_one(tree: VirtualCluster) -> None:
    found = {}
    for name in ("tree", "auto"):
        words = ["preflight", "--json", "--transport", name, "c.yaml"]
        command = [sys.executable, "-m", "dslaunch", *words]
        done = tree.run("control", command, env={"TOKEN": SECRET})
        report = json.loads(done.stdout)
        found[name] = {(f["check"], f["level"], *f["hosts"]) for f in report["findings"]}
    busy = {each for each in found["tree"] ^ found["auto"] if each[0].startswith(("cpu.", "ssh."))}
    assert found["tree"] ^ found["auto"] == busy


@pytest.mark.long  # `make test` has one run, one lost relay and one refused login over a tree
def test_a_relay_that_is_killed_before_the_ranks_start_does_not_prevent_the_start(
    tree: VirtualCluster,
) -> None:
    """The nodes are asked about an environment whose activation waits until the relay is killed."""
    asked = "touch /shared/asked-$(hostname); until test -e /shared/killed; do sleep 0.1; done"
    activated = CLUSTER.replace(f"python: {sys.executable}", f"activate: '{asked}'")
    tree.put("control", "/root/c.yaml", activated)
    behind = [tree.shared / f"asked-{node}" for node in ("node5", "node6", "node7")]
    (tree.shared / "go").touch()
    with start(tree, "job.py", "/shared/go") as running:
        wait_until(lambda: all(path.exists() for path in behind))
        relay = relay_of(tree, "node4")
        tree.run("node4", ["kill", "-KILL", str(relay.pid)])
        wait_until(lambda: not any(p.pid == relay.pid for p in tree.processes("node4")))
        (tree.shared / "killed").touch()
        wait_for_ranks(running)
        _, errors = running.communicate()
    assert running.wait() == 0, errors
    assert {"node5", "node6", "node7"} <= set(reconnected(tree))
    assert tree.leftovers() == {}


@pytest.mark.long  # `make test` has one run, one lost relay and one refused login over a tree
def test_nodes_whose_relay_is_killed_are_reached_through_another_parent(
    tree: VirtualCluster,
) -> None:
    with start(tree, "job.py", "/shared/go") as running:
        wait_for_ranks(running)
        relay = relay_of(tree, "node4")
        tree.run("node4", ["kill", "-KILL", str(relay.pid)])
        wait_until_back(tree, running, "node5", "node6", "node7")
        (tree.shared / "go").touch()
        _, errors = running.communicate()
    assert running.wait() == 0, errors
    assert max(reconnected(tree).values()) < 10
    assert tree.leftovers() == {}


def test_a_relay_that_is_stopped_is_replaced_and_leaves_nothing(
    tree: VirtualCluster,
) -> None:
    with start(tree, "job.py", "/shared/go") as running:
        wait_for_ranks(running)
        stop(tree, "node4", relay_of(tree, "node4"))
        # node4's own agent shares the connection with the relay
        wait_until_back(tree, running, "node4", "node5", "node6", "node7")
        (tree.shared / "go").touch()
        _, errors = running.communicate()
    assert running.wait() == 0, errors
    assert tree.leftovers() == {}


@pytest.mark.long  # `make test` has one run, one lost relay and one refused login over a tree
def test_nodes_behind_a_node_whose_packets_are_lost_are_reached_within_ten_seconds(
    tree: VirtualCluster,
) -> None:
    tree.put("control", "/root/c.yaml", CLUSTER.replace("_timeout: 20", "_timeout: 5"))
    with start(tree, "--reconnect-timeout", "15", "job.py", "/shared/go") as running:
        wait_for_ranks(running)
        cut = time.time()
        tree.fault("node4", "cut", "drop")
        wait_until_back(tree, running, "node5", "node6", "node7")
        replaced = max(each["time"] for each in recorded_events(tree) if each["kind"] == "back")
        running.communicate()
    assert running.wait() == 5
    assert replaced - cut < 10
    ended = outcome(tree)
    assert (ended["reason"]["host"], ended["unconfirmed"]) == ("node4", ["node4"])
    tree.heal()
    assert tree.leftovers(within=150) == {}


@pytest.mark.long  # `make test` has one run, one lost relay and one refused login over a tree
def test_a_lost_inner_node_costs_its_own_ranks_and_all_others_confirm_their_end(
    tree: VirtualCluster,
) -> None:
    with start(tree, "--reconnect-timeout", "15", "job.py", "/shared/go") as running:
        wait_for_ranks(running)
        tree.crash("node1")
        running.communicate()
    assert running.wait() == 5
    ended = outcome(tree)
    assert (ended["reason"]["host"], ended["unconfirmed"]) == ("node1", ["node1"])
    assert tree.leftovers() == {}


def test_a_node_that_its_parent_cannot_log_in_to_is_reached_and_the_reason_shown_once(
    tree: VirtualCluster,
) -> None:
    (tree.shared / "go").touch()
    tree.run("node1", ["sh", "-c", "rm ~/.ssh/id_*"], check=True)  # it has no key any more
    through, errors = logins_of_a_run(tree)
    assert through == SHAPE | {"node2": "node4", "node3": "node4"}
    assert errors.count("authentication") == 1


@pytest.mark.long  # `make test` has one run, one lost relay and one refused login over a tree
def test_nodes_that_may_not_log_in_to_each_other_are_reached_by_the_launcher(
    tree: VirtualCluster,
) -> None:
    (tree.shared / "go").touch()
    for node in SHAPE:
        tree.run(node, ["sh", "-c", "rm ~/.ssh/id_*"], check=True)
    through, errors = logins_of_a_run(tree)
    assert set(through.values()) == {"control"}
    assert errors.count("authentication") == 1


@pytest.mark.long  # `make test` has one run, one lost relay and one refused login over a tree
def test_a_parent_that_does_not_know_the_host_key_of_a_child_does_not_log_in(
    tree: VirtualCluster,
) -> None:
    (tree.shared / "go").touch()
    tree.put("node1", "/etc/ssh/ssh_known_hosts", "", mode=0o644)
    through, errors = logins_of_a_run(tree)
    assert through == SHAPE | {"node2": "node4", "node3": "node4"}
    assert errors.count("host-key-unknown") == 1


@pytest.mark.long  # `make test` has one run, one lost relay and one refused login over a tree
def test_a_node_whose_host_key_has_changed_is_refused_on_every_way(tree: VirtualCluster) -> None:
    tree.fault("node2", "host-key")
    with start(tree, "job.py", "/shared/go") as running:
        running.communicate()
    assert running.wait() == 5
    reason = outcome(tree)["reason"]
    assert reason["failures"] == [["node2", "host-key-changed"]]


@pytest.mark.long  # `make test` has one run, one lost relay and one refused login over a tree
def test_ctrl_c_ends_everything_behind_every_relay(tree: VirtualCluster) -> None:
    with start(tree, "job.py", "/shared/go") as running:
        wait_for_ranks(running)
        running.send_signal(signal.SIGINT)
        running.communicate()
        assert running.wait() == 130
    assert outcome(tree)["unconfirmed"] == []
    assert tree.leftovers() == {}


@pytest.mark.long  # `make test` has one run, one lost relay and one refused login over a tree
def test_a_launcher_that_is_killed_leaves_nothing_behind_any_relay(tree: VirtualCluster) -> None:
    with start(tree, "--reconnect-timeout", "3", "job.py", "/shared/go") as running:
        wait_for_ranks(running)
        running.send_signal(signal.SIGKILL)
        running.communicate()
    assert tree.leftovers(within=150) == {}


@pytest.mark.long  # `make test` has one run, one lost relay and one refused login over a tree
def test_a_detached_run_is_shown_and_stopped_over_a_tree(tree: VirtualCluster) -> None:
    with start(tree, "--detach", "job.py", "/shared/go") as running:
        running.communicate()
    assert running.wait() == 0

    def dslaunch(*words: str) -> str:
        command = [sys.executable, "-m", "dslaunch", *words]
        return tree.run("control", command, env={"TOKEN": SECRET}, check=True).stdout

    wait_until(lambda: len(dslaunch("logs", "latest").splitlines()) == len(SHAPE))
    assert json.loads(dslaunch("status", "latest", "--json"))["state"] == "running"
    dslaunch("stop", "latest")
    assert tree.leftovers() == {}
