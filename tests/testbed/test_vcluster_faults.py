"""Every fault shows as it does on real machines, and `heal` puts it right."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable

import pytest

from tests.testbed.vcluster import ClusterError, VirtualCluster

BATCH = ("ssh", "-o", "BatchMode=yes", "-o")
SSH = (*BATCH, "ConnectTimeout=150")
BRIEF = (*BATCH, "ConnectTimeout=3")
"""For nodes that do not answer."""


def said(cluster: VirtualCluster, node: str, *command: str, ssh: tuple[str, ...] = SSH) -> str:
    """What ssh from the control machine says, on both streams."""
    done = cluster.run("control", [*ssh, node, *(command or ("hostname",))])
    return done.stdout + done.stderr


SEEN = {
    "sshd-down": ("Connection refused", []),
    "sshd-hang": ("timed out during banner exchange", []),
    "host-key": ("Host key verification failed", []),
    "password-only": ("Permission denied (password", []),
    "cut": ("timed out", ["drop"]),
    "block": ("Connection refused", ["22", "reject"]),
    "only-from": ("Connection refused", ["node3", "reject"]),
}


@pytest.mark.parametrize(("kind", "seen"), SEEN.items(), ids=SEEN)
def test_a_node_that_cannot_be_reached_says_so_and_heals(
    cluster4: VirtualCluster, kind: str, seen: tuple[str, list[str]]
) -> None:
    message, arguments = seen
    cluster4.fault("node4", kind, *arguments)
    assert message in said(cluster4, "node4", ssh=BRIEF)
    cluster4.heal("node4")
    assert said(cluster4, "node4") == "node4\n"


def test_an_unplugged_node_with_an_unknown_address_has_no_route(
    cluster4: VirtualCluster,
) -> None:
    cluster4.fault("node2", "cut")
    cluster4.run("control", ["ip", "neigh", "flush", "all"], user="root")
    patient = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
    assert "No route to host" in cluster4.run("control", [*patient, "node2", "true"]).stderr


def test_a_node_behind_a_jump_host_is_reached_only_through_it(cluster4: VirtualCluster) -> None:
    cluster4.fault("node4", "only-from", "node3")
    assert "timed out" in said(cluster4, "node4", ssh=BRIEF)
    through = cluster4.run("control", [*SSH, "-J", "node3", "node4", "hostname"])
    assert through.stdout == "node4\n"


def test_a_delay_makes_logins_slow(cluster4: VirtualCluster) -> None:
    cluster4.fault("node1", "delay", 200)
    began = time.monotonic()
    assert said(cluster4, "node1") == "node1\n"
    assert time.monotonic() - began > 1  # five round trips at the least


def test_data_arrives_intact_over_a_slow_cable(cluster4: VirtualCluster) -> None:
    cluster4.fault("node1", "delay", 20, 5)
    ssh = " ".join(SSH)
    script = f"head -c 3M /dev/urandom > r; md5sum < r; {ssh} node1 md5sum < r; rm r"
    first, second = cluster4.run("control", ["sh", "-c", script], check=True).stdout.splitlines()
    assert first == second


def test_lost_packets_are_sent_again(cluster4: VirtualCluster) -> None:
    cluster4.fault("node1", "loss", 20)
    assert said(cluster4, "node1") == "node1\n"


def test_a_narrow_cable_takes_its_time(cluster4: VirtualCluster) -> None:
    cluster4.fault("node2", "rate", "10mbit")
    began = time.monotonic()
    script = f"head -c 2M /dev/zero | {' '.join(SSH)} node2 wc -c"
    assert cluster4.run("control", ["sh", "-c", script]).stdout == "2097152\n"
    assert time.monotonic() - began > 1.2


@pytest.mark.parametrize("path", ["/", "/scratch", "/dev/shm"])
def test_a_full_disk_refuses_files_and_lets_logins_in(cluster4: VirtualCluster, path: str) -> None:
    write = f"head -c 100k /dev/zero > {path.rstrip('/')}/big"
    if path == "/":
        write = "head -c 100k /dev/zero > /tmp/big"
    cluster4.fault("node1", "disk-full", path)
    assert "No space left on device" in said(cluster4, "node1", write)
    cluster4.heal("node1")
    assert said(cluster4, "node1", write) == ""


def test_a_skewed_clock_is_ahead(cluster4: VirtualCluster) -> None:
    try:
        cluster4.fault("node1", "skew", "+3600")
    except ClusterError as error:
        pytest.skip(str(error))
    began = time.time()
    there = int(said(cluster4, "node1", "date", "+%s"))
    assert began - 1 <= there - 3600 <= time.time() + 1


def test_a_blocked_port_leaves_ssh_alone(cluster4: VirtualCluster) -> None:
    cluster4.fault("node4", "block", "29500,30000-30010")
    assert said(cluster4, "node4") == "node4\n"
    probe = "import socket; socket.create_connection(('node4', {}), timeout={})"
    blocked, shut = (
        cluster4.run("control", ["/usr/bin/python3", "-c", probe.format(port, timeout)]).stderr
        for port, timeout in ((29500, 1), (29501, 150))
    )
    assert "TimeoutError" in blocked
    assert "ConnectionRefusedError" in shut


def test_a_crashed_node_is_gone_with_its_processes_and_files(cluster4: VirtualCluster) -> None:
    cluster4.run("node3", ["touch", "/tmp/file"], check=True)
    before = cluster4.run("node3", ["cat", "/proc/sys/kernel/random/boot_id"]).stdout
    with cluster4.popen("node3", ["sleep", "60"]) as sleep:
        cluster4.crash("node3")
        assert sleep.wait(300) == 128 + signal.SIGKILL
    assert "hostname" not in said(cluster4, "node3", ssh=BRIEF)
    cluster4.boot("node3")
    assert said(cluster4, "node3") == "node3\n"
    assert cluster4.run("node3", ["ls", "/tmp/file"]).returncode != 0
    assert cluster4.run("node3", ["cat", "/proc/sys/kernel/random/boot_id"]).stdout != before


def test_heal_puts_all_nodes_right_at_once(cluster4: VirtualCluster) -> None:
    cluster4.fault("node[12]", "sshd-down")
    cluster4.fault("node1", "rate", "50mbit")
    cluster4.crash("node4")
    cluster4.heal()
    assert [said(cluster4, node) for node in cluster4.names] == [f"{n}\n" for n in cluster4.names]
    assert not any(node.faults for node in cluster4.cluster.nodes.values())


def test_an_unknown_fault_is_answered_with_those_that_exist(cluster4: VirtualCluster) -> None:
    with pytest.raises(ClusterError, match="unknown fault 'gremlin'; there are sshd-down"):
        cluster4.fault("node1", "gremlin")


def test_a_fault_without_its_arguments_is_answered_with_its_usage(
    cluster4: VirtualCluster,
) -> None:
    with pytest.raises(ClusterError, match="usage: fault node1 loss PERCENT"):
        cluster4.fault("node1", "loss")
    assert cluster4.cluster.node("node1").faults == {}


def test_a_fault_cannot_be_stacked_on_itself(cluster4: VirtualCluster) -> None:
    cluster4.fault("node1", "sshd-down")
    with pytest.raises(ClusterError, match="has the fault sshd-down already: heal it first"):
        cluster4.fault("node1", "sshd-down")


def test_a_reset_ends_what_is_connected_and_lets_new_connections_in(
    cluster4: VirtualCluster,
) -> None:
    talk = "while echo in; do sleep .1; done"
    with cluster4.popen("control", [*SSH, "node3", talk]) as session:
        assert session.stdout.readline() == "in\n"
        cluster4.fault("node3", "reset")
        assert session.wait(300) == 255
        assert re.search("Connection reset by peer|Broken pipe", session.stderr.read())
    assert said(cluster4, "node3") == "node3\n"
    deadline = time.monotonic() + 300
    while any(talk in seen.argv for seen in cluster4.seen()["node3"]):
        assert time.monotonic() < deadline  # its sshd was told too


def test_a_reset_of_nothing_is_refused(cluster4: VirtualCluster) -> None:
    with pytest.raises(ClusterError, match="node3 has no connection to port 1"):
        cluster4.fault("node3", "reset", 1)


def test_a_node_without_memory_kills_what_takes_more(cluster4: VirtualCluster) -> None:
    script = "import sys; sys.stdin.readline(); x = bytearray(200 << 20)"
    python = ["/usr/bin/python3", "-c", script]
    with cluster4.popen("node1", python) as greedy:
        greedy.host_pid()
        try:
            cluster4.fault("node1", "memory", 32 << 20)
        except ClusterError as error:
            pytest.skip(str(error))
        greedy.stdin.write("go\n")
        greedy.stdin.flush()
        assert greedy.wait(300) == 128 + signal.SIGKILL
    cluster4.heal("node1")
    done = cluster4.run("node1", ["/usr/bin/python3", "-c", "x = bytearray(200 << 20)"])
    assert done.returncode == 0


def test_a_separate_disk_can_be_full(virtual_cluster: Callable[..., VirtualCluster]) -> None:
    cluster = virtual_cluster(nodes=1, own_disk=["/tmp", "/job"])
    cluster.fault("node1", "disk-full", "/job")
    write = "head -c 100k /dev/zero > {}/big"
    assert "No space left on device" in said(cluster, "node1", write.format("/job"))
    assert said(cluster, "node1", write.format("/tmp")) == ""


def test_what_runs_is_seen_from_outside(cluster4: VirtualCluster) -> None:
    with cluster4.popen("node2", ["sleep", "60"], env={"MARK": "x"}) as sleep:
        host_pid = sleep.host_pid()
        deadline = time.monotonic() + 300
        while not (found := [s for s in cluster4.seen()["node2"] if s.argv == ("sleep", "60")]):
            assert time.monotonic() < deadline
        (seen,) = found
        assert (seen.host_pid, seen.environ["MARK"]) == (host_pid, "x")
        assert seen.pid in [process.pid for process in cluster4.processes("node2")]
