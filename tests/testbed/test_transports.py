"""The two SSH transports against real sshd: all bytes, all shells, and servers under load."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.testbed.vcluster import VirtualCluster

TRANSPORTS = pytest.mark.parametrize("transport", ["fabric", "openssh"])
REACH = """
import sys
from dslaunch import transport
from dslaunch.cluster.load import parse_cluster
from dslaunch.transport.channel import ChannelOutput
from concurrent.futures import ThreadPoolExecutor

def drain(channel):
    output = ChannelOutput(channel)
    return b"".join(iter(output.read, b"")), output.end()

cluster = parse_cluster(sys.argv[2], "c.yaml")
nodes = transport.get(sys.argv[1], cluster)
with ThreadPoolExecutor(cluster.ssh.fanout) as pool:
    connecting = {node.host: pool.submit(nodes.connect, node) for node in cluster.nodes}
errors = {host: one.exception() for host, one in connecting.items()}
reached = {host: one.result() for host, one in connecting.items() if errors[host] is None}
failed = {host: str(error) for host, error in errors.items() if error is not None}
"""
"""Connects to the nodes of the cluster file in its second argument."""
ALL = """
import json
print(json.dumps(failed))
"""
ECHO = """
import hashlib, os
sent = bytes(range(256)) + os.urandom(5_000_000)
channel = reached["node1"].start("cat")
channel.write(sent)
channel.close_input()
got, end = drain(channel)
print(len(got), got == sent, end.code)
"""
ENDS = """
KILLED = "exec 2>/dev/null; sh -c 'kill -9 $$'; exit $?"
for line in ("exit 7", KILLED, "echo words >&2; exit 3", "printf '%s' 'a  b'"):
    channel = reached["node1"].start(line)
    channel.close_input()
    said, end = drain(channel)
    print([end.code, said.decode(), end.stderr])
"""
LEFT_UNREAD = """
for _ in range(20):
    connection = nodes.connect(cluster.nodes[0])
    ChannelOutput(connection.start("exec cat /dev/zero")).read()
    connection.close()
"""
CLOSE = """
for connection in reached.values():
    connection.close()
nodes.close()
"""


def on_control(cluster: VirtualCluster, transport: str, nodes: str, what: str) -> str:
    """Run one of the programs above on the control machine; what it printed."""
    words = [sys.executable, "-c", REACH + what + CLOSE, transport, nodes]
    done = cluster.run("control", words, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@TRANSPORTS
def test_five_megabytes_of_any_bytes_arrive_both_ways(
    cluster4: VirtualCluster, transport: str
) -> None:
    said = on_control(cluster4, transport, "nodes: [{host: node1, slots: 1}]", ECHO)
    assert said == "5000256 True 0\n"


@TRANSPORTS
def test_exit_codes_signals_and_both_streams_are_distinguished(
    cluster4: VirtualCluster, transport: str
) -> None:
    said = on_control(cluster4, transport, "nodes: [{host: node1, slots: 1}]", ENDS)
    assert said.splitlines() == [
        "[7, '', '']",
        "[137, '', '']",
        "[3, '', 'words\\n']",
        "[0, 'a  b', '']",
    ]


def test_connections_that_end_with_unread_data_are_ended_in_order_not_reset(
    cluster4: VirtualCluster,
) -> None:
    """A reset is sent once: on a network that loses it, sshd would keep its session."""
    before = closed_with_unread_data(cluster4)
    on_control(cluster4, "fabric", "nodes: [{host: node1, slots: 1}]", LEFT_UNREAD)
    assert closed_with_unread_data(cluster4) == before
    assert cluster4.leftovers() == {}


def closed_with_unread_data(cluster: VirtualCluster) -> int:
    """How many connections the control machine has reset for that (netstat(8), TcpExt)."""
    text = cluster.run("control", ["cat", "/proc/net/netstat"], check=True).stdout
    names, values = (line.split() for line in text.splitlines() if line.startswith("TcpExt:"))
    return int(dict(zip(names, values, strict=True))["TCPAbortOnClose"])


@pytest.mark.parametrize(
    ("shell", "transport"),
    [
        ("csh", "openssh"),
        ("fish", "fabric"),
        # the transports give a shell the same line; test_runs.py has a noisy one
        pytest.param("csh", "fabric", marks=pytest.mark.long),
        pytest.param("fish", "openssh", marks=pytest.mark.long),
        pytest.param("bash -c 'echo noise'", "fabric", marks=pytest.mark.long),
        pytest.param("bash -c 'echo noise'", "openssh", marks=pytest.mark.long),
    ],
)
def test_any_login_shell_carries_a_run(
    cluster4: VirtualCluster, transport: str, shell: str
) -> None:
    program = shell.split()[0]
    if cluster4.run("node1", ["which", program]).returncode:
        pytest.skip(f"{program} is not installed")
    noise = "echo noise" if program == "bash" else ""
    change = f"sed -i '/^root:/s|[^:]*$|/bin/{program}|' /etc/passwd; echo '{noise}' > ~/.bashrc"
    nodes = f"transport: {transport}\npython: {sys.executable}\nnodes: [{{host: node1, slots: 2}}]"
    cluster4.put("control", "/root/shells/c.yaml", nodes)
    words = ["-m", "dslaunch", "run", "c.yaml", "-l", "direct", "--no-python", "--env", "A=$x 'y'"]
    script = ["sh", "-c", 'echo "$A" "$1"', "sh", "a b;$HOME\n'"]
    try:
        cluster4.run("node1", ["sh", "-c", change])
        done = cluster4.run("control", [sys.executable, *words, "--", *script], cwd="/root/shells")
    finally:
        cluster4.run(
            "node1", ["sh", "-c", "sed -i '/^root:/s|[^:]*$|/bin/bash|' /etc/passwd; rm ~/.bashrc"]
        )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(
        f"node1:{rank}│{text}" for rank in (0, 1) for text in ("$x 'y' a b;$HOME", "'")
    )


@TRANSPORTS
def test_many_nodes_behind_one_jump_host_are_all_reached(
    virtual_cluster: Callable[..., Any], transport: str
) -> None:
    """Its sshd has Debian's MaxStartups, 10:30:100: more at once are dropped at random."""
    cluster = virtual_cluster(nodes=17)
    # all 17 servers share the CPUs of this machine
    ssh = "ssh: {jump: node17, fanout: 32, connect_timeout: 120}"
    nodes = f"{ssh}\nnodes: [{{host: 'node[1-16]', slots: 1}}]"
    assert json.loads(on_control(cluster, transport, nodes, ALL)) == {}


@TRANSPORTS
def test_a_node_that_refuses_says_so_in_words(cluster4: VirtualCluster, transport: str) -> None:
    nodes = "nodes: [{host: node1, slots: 1, port: 2}]"
    found = json.loads(on_control(cluster4, transport, nodes, ALL))
    assert found["node1"].startswith("node1: connection refused on port ")
    assert "None" not in found["node1"]
