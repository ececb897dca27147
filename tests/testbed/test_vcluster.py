"""The virtual cluster is what it says: machines that share nothing but their software."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.testbed.vcluster import ClusterError, VirtualCluster
from tests.testbed.vcluster.access import command_line
from tests.testbed.vcluster.rootfs import CHECKOUT
from tests.testbed.vcluster.state import Bind, load

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=60")
Start = Callable[..., VirtualCluster]


def host_marks() -> tuple[set[str], str]:
    """What a cluster must not leave on the host: network interfaces and mounts."""
    interfaces = {entry.name for entry in Path("/sys/class/net").iterdir()}
    return interfaces, Path("/proc/self/mounts").read_text()


def wait_until(true: Callable[[], bool], within: float = 60) -> None:
    """Return once it is true; fail when it is not `within` seconds."""
    deadline = time.monotonic() + within
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_every_node_answers_under_its_own_name(cluster4: VirtualCluster) -> None:
    for node in cluster4.names:
        assert cluster4.run("control", [*SSH, node, "hostname"]).stdout == f"{node}\n"


def test_nodes_reach_each_other_and_the_control_machine(cluster4: VirtualCluster) -> None:
    chain = [*SSH, "node1", *SSH, "node2", *SSH, "control", "hostname"]
    assert cluster4.run("control", chain).stdout == "control\n"


def test_an_ordinary_account_can_log_in(cluster4: VirtualCluster) -> None:
    done = cluster4.run("control", [*SSH, "node3", "id", "-un"], user=cluster4.user)
    assert done.stdout == f"{cluster4.user}\n"


def test_an_unknown_host_key_is_rejected(cluster4: VirtualCluster) -> None:
    unknown = ("-o", "GlobalKnownHostsFile=/dev/null")
    done = cluster4.run("control", [*SSH, *unknown, "node1", "true"])
    assert "Host key verification failed" in done.stderr


def test_disks_are_private_and_shared_is_shared(cluster4: VirtualCluster) -> None:
    cluster4.run("node1", ["touch", "/tmp/mine", "/shared/ours"], check=True)
    assert cluster4.run("node2", ["ls", "/tmp/mine"]).returncode != 0
    assert cluster4.run("node2", ["ls", "/shared/ours"]).returncode == 0
    assert (cluster4.shared / "ours").exists()


def test_a_program_put_on_one_node_is_on_no_other(cluster4: VirtualCluster) -> None:
    # a name that nobody else asks for: the nodes are other tests' as well
    cluster4.put("node1", "/usr/local/bin/only-here", "#!/bin/sh\necho here\n")
    assert cluster4.run("control", [*SSH, "node1", "only-here"]).stdout == "here\n"
    assert cluster4.run("control", [*SSH, "node2", "only-here"]).returncode == 127


def test_boot_ids_differ_between_nodes(cluster4: VirtualCluster) -> None:
    file = "/proc/sys/kernel/random/boot_id"
    ids = {cluster4.run(node, ["cat", file]).stdout for node in cluster4.names}
    assert len(ids) == 4


def test_the_checkout_and_its_python_are_visible_in_nodes(cluster4: VirtualCluster) -> None:
    python = cluster4.cluster.directory / "cluster.yaml"
    assert "python: " in python.read_text()
    script = "import dslaunch, sys; print(dslaunch.__file__)"
    done = cluster4.run("node4", [sys.executable, "-c", script], user=cluster4.user)
    assert done.stdout.startswith(str(CHECKOUT)), done.stderr


def test_environment_and_directory_are_those_given(cluster4: VirtualCluster) -> None:
    script = 'printf "%s|%s" "$SPECIAL" "$PWD"'
    where = {"env": {"SPECIAL": "a b;$c\n"}, "cwd": "/tmp"}
    done = cluster4.run("node1", ["sh", "-c", script], **where)
    assert done.stdout == "a b;$c\n|/tmp"


def test_nothing_leaves_the_cluster(cluster4: VirtualCluster) -> None:
    probe = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=2)"
    done = cluster4.run("node1", ["/usr/bin/python3", "-c", probe])
    assert "OSError" in done.stderr or "TimeoutError" in done.stderr


def test_two_networks_have_an_address_each(virtual_cluster: Start) -> None:
    cluster = virtual_cluster(nodes=2, nics=2)
    assert cluster.run("control", [*SSH, "node2-e1", "hostname"]).stdout == "node2\n"
    assert cluster.address("node2", nic=1) in cluster.run("node2", ["ip", "addr"]).stdout


def test_a_node_can_take_its_own_name_for_a_loopback_address(virtual_cluster: Start) -> None:
    cluster = virtual_cluster(nodes=2, loopback_hostname=True)
    assert cluster.run("node1", ["getent", "hosts", "node1"]).stdout.split()[0] == "127.0.1.1"
    address = cluster.address("node2")
    assert cluster.run("node1", ["getent", "hosts", "node2"]).stdout.split()[0] == address


def test_two_clusters_do_not_meet(virtual_cluster: Start) -> None:
    one, other = virtual_cluster(nodes=1), virtual_cluster(nodes=1)
    one.run("node1", ["touch", "/tmp/here"], check=True)
    assert other.run("control", [*SSH, "node1", "ls", "/tmp/here"]).returncode != 0


def test_the_host_reaches_nodes_through_the_ssh_config(cluster4: VirtualCluster) -> None:
    command = ["ssh", "-F", str(cluster4.ssh_config), "-o", "BatchMode=yes", "node2", "hostname"]
    done = subprocess.run(command, text=True, capture_output=True, timeout=300, check=False)
    assert done.stdout == "node2\n", done.stderr


def test_a_running_program_is_seen_with_its_arguments_and_environment(
    cluster4: VirtualCluster,
) -> None:
    script = ["sh", "-c", "echo started; read line", "extra word"]
    with cluster4.popen("node1", script, env={"MARK": "x y"}) as shell:
        assert shell.stdout.readline() == "started\n"
        (found,) = cluster4.processes("node1")
    assert found.argv == tuple(script)
    assert found.environ["MARK"] == "x y"


def test_leftovers_are_named_and_ended(cluster4: VirtualCluster) -> None:
    cluster4.run("node2", ["sh", "-c", "setsid sleep 321 >/dev/null 2>&1 &"], check=True)
    left = cluster4.leftovers(within=0)
    assert [process.argv for process in left["node2"]] == [("sleep", "321")]
    assert cluster4.leftovers() == {}


def test_a_signal_reaches_the_program_and_not_only_its_door(cluster4: VirtualCluster) -> None:
    # in `wait` a trap runs at once; a signal to bash alone, while it waits for a program in the
    # foreground that ends well, may be forgotten
    trap = "trap 'echo caught; kill $!; exit 7' INT; sleep 60 & echo ready; wait"
    with cluster4.popen("node1", ["bash", "-c", trap]) as shell:
        assert shell.stdout.readline() == "ready\n"
        shell.send_signal(signal.SIGINT)
        assert shell.stdout.readline() == "caught\n"
        assert shell.wait() == 7


def test_control_c_on_a_terminal_interrupts_the_program(cluster4: VirtualCluster) -> None:
    trap = "trap 'exit 9' INT; echo ready; while :; do sleep 0.05; done"
    with cluster4.popen("node1", ["bash", "-c", trap], terminal=True) as shell:
        assert shell.terminal is not None
        assert b"ready" in os.read(shell.terminal, 100)
        os.write(shell.terminal, b"\x03")
        assert shell.wait() == 9


def test_a_program_that_takes_too_long_is_ended(cluster4: VirtualCluster) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        cluster4.run("node1", ["sleep", "60"], timeout=0.3)
    assert cluster4.leftovers() == {}


def test_an_unknown_node_is_named_with_those_that_exist(cluster4: VirtualCluster) -> None:
    with pytest.raises(ClusterError, match="no node 'node9'; there are control, node1"):
        cluster4.run("node9", ["true"])


def test_nothing_is_left_on_the_host_after_down(tmp_path: Path, can_have_clusters: None) -> None:
    before = host_marks()
    with VirtualCluster(nodes=2, directory=tmp_path / "gone") as cluster:
        inits = [node.init for node in cluster.cluster.nodes.values() if node.init]
        cluster.run("node1", ["sh", "-c", "setsid sleep 321 >/dev/null 2>&1 &"], check=True)
    assert not (tmp_path / "gone").exists()
    assert len(inits) == 3
    assert not any(init.alive for init in inits)
    assert host_marks() == before


def test_a_cluster_ends_with_the_process_that_holds_it(
    tmp_path: Path, can_have_clusters: None
) -> None:
    script = (
        "import sys, os, signal; from tests.testbed.vcluster import VirtualCluster\n"
        f"VirtualCluster(1, {str(tmp_path / 'held')!r}).up()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    env = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    subprocess.run([sys.executable, "-c", script], env=env, timeout=300, check=False)
    wait_until(lambda: not (tmp_path / "held").exists())


@pytest.mark.parametrize(
    ("text", "bind"),
    [
        ("/data", Bind("/data", "/data")),
        ("/data:/mnt", Bind("/data", "/mnt")),
        ("/data:rw", Bind("/data", "/data", read_only=False)),
        ("/data:/mnt:rw", Bind("/data", "/mnt", read_only=False)),
    ],
    ids=["source", "target", "writable", "writable-target"],
)
def test_a_bind_is_read_as_docker_users_write_it(text: str, bind: Bind) -> None:
    assert Bind.parse(text) == bind


def test_a_cluster_ends_that_nobody_waits_for_any_more(
    can_have_clusters: None, tmp_path: Path
) -> None:
    """The process that holds it may be killed while it starts."""
    ours, its = os.pipe()
    os.close(ours)
    command = [*command_line(tmp_path), "up", "--hold", "--nodes", "1"]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=subprocess.PIPE,
        timeout=300,
        check=False,
    )
    os.close(its)
    assert done.returncode != 0
    assert load(tmp_path) is None
