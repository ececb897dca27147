"""Reaching nodes that accept connections and send nothing: nobody waits for one after the other."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from dslaunch import transport
from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.model import Cluster
from dslaunch.errors import Interrupted
from dslaunch.run.reach import reach
from dslaunch.run.ssh_run import SshRun
from dslaunch.run.status import CLUSTERS_AT_ONCE, ask_clusters
from dslaunch.run.view import QuietView, ignore

COUNT = 12
TIMEOUT = 3
"""Seconds that one connection may take."""
ENDLESS = 600
"""Seconds that a connection may take which nobody waits for."""


@pytest.fixture
def servers() -> Iterator[list[socket.socket]]:
    """Servers that accept connections, by their backlog, and send nothing."""
    with contextlib.ExitStack() as stack:
        listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(COUNT)]
        for server in listening:
            stack.enter_context(server)
        yield listening


@pytest.fixture
def ssh_config(servers: list[socket.socket], tmp_path: Path) -> Path:
    """Name the servers n0, n1, ...; the hosts behind0, behind1, ... are behind n0."""
    ports = [server.getsockname()[1] for server in servers]
    blocks = [f"Host n{i}\n  HostName 127.0.0.1\n  Port {port}\n" for i, port in enumerate(ports)]
    path = tmp_path / "ssh_config"
    path.write_text("".join([*blocks, "Host behind*\n  ProxyJump n0\n"]))
    path.chmod(0o600)
    return path


def cluster_text(ssh_config: Path, hosts: str, timeout: float = TIMEOUT) -> str:
    return (
        "name: mute\ntransport: fabric\n"
        f"ssh: {{config_file: {ssh_config}, connect_timeout: {timeout}}}\n"
        f'nodes: [{{host: "{hosts}", slots: 1}}]\n'
    )


def cluster(ssh_config: Path, hosts: str, timeout: float = TIMEOUT) -> Cluster:
    return parse_cluster(cluster_text(ssh_config, hosts, timeout), "c.yaml")


def hang_up_once_all_are_connected(servers: list[socket.socket]) -> None:
    """Hang up, and refuse any other connection, once every server has one. Whoever connects to the
    next server only after the one before has answered does not get there."""
    connections = []
    for server in servers:
        server.settimeout(ENDLESS / 4)
        connections.append(server.accept()[0])
    for each in (*servers, *connections):
        each.close()


def test_mute_servers_are_connected_to_at_the_same_time(
    servers: list[socket.socket], ssh_config: Path
) -> None:
    given = cluster(ssh_config, f"n[0-{COUNT - 1}]", timeout=ENDLESS)
    with ThreadPoolExecutor(1) as pool:
        hung_up = pool.submit(hang_up_once_all_are_connected, servers)
        with reach(given, given.nodes) as reached:
            assert list(reached.failures) == [node.host for node in given.nodes]
        hung_up.result()


def test_nodes_behind_a_mute_server_fail_with_its_one_connection(
    servers: list[socket.socket], ssh_config: Path
) -> None:
    given = cluster(ssh_config, f"behind[0-{COUNT - 1}]")
    with reach(given, given.nodes) as reached:
        assert [(f.host, f.kind) for f in reached.failures.values()] == [
            (node.host, "timeout") for node in given.nodes
        ]
    servers[0].setblocking(False)
    servers[0].accept()[0].close()
    with pytest.raises(BlockingIOError):
        servers[0].accept()


def test_a_node_that_joins_the_wait_for_a_jump_host_late_fails_for_the_same_reason(
    servers: list[socket.socket], ssh_config: Path
) -> None:
    given = cluster(ssh_config, "behind[0-1]")
    with closing(transport.get("fabric", given)) as opened, ThreadPoolExecutor(2) as pool:
        first = pool.submit(opened.connect, given.nodes[0])
        connection, _ = servers[0].accept()
        second = pool.submit(opened.connect, given.nodes[1])
        errors = [future.exception() for future in (first, second)]
        connection.close()
    assert [error.failures[0].kind for error in errors] == ["timeout", "timeout"]


def test_mute_servers_of_several_clusters_are_connected_to_at_the_same_time(
    servers: list[socket.socket], ssh_config: Path
) -> None:
    count = min(COUNT, CLUSTERS_AT_ONCE)
    clusters = [cluster(ssh_config, f"n{number}", timeout=ENDLESS) for number in range(count)]
    with ThreadPoolExecutor(1) as pool:
        hung_up = pool.submit(hang_up_once_all_are_connected, servers[:count])
        reports = ask_clusters(clusters)
        hung_up.result()
    assert list(reports.failures) == [f"n{number}" for number in range(count)]


def test_ctrl_c_that_is_counted_ends_the_wait_for_mute_servers(ssh_config: Path) -> None:
    given = cluster(ssh_config, "n[0-3]", timeout=ENDLESS)
    began = time.monotonic()
    with pytest.raises(Interrupted), reach(given, given.nodes, until=lambda: True):
        pass
    assert time.monotonic() - began < ENDLESS / 4


def test_attach_and_logs_end_at_once_while_mute_servers_are_waited_for(ssh_config: Path) -> None:
    run = SshRun("run", "run", ("n0",), found_on=cluster(ssh_config, "n0", timeout=ENDLESS))
    began = time.monotonic()
    with pytest.raises(Interrupted):
        run.attach(QuietView(), ignore, until=lambda: True)
    with pytest.raises(Interrupted):
        run.show_logs(QuietView(), ignore, follow=True, until=lambda: True)
    assert time.monotonic() - began < ENDLESS / 4


def test_wait_raises_timeout_error_while_mute_servers_are_waited_for(ssh_config: Path) -> None:
    run = SshRun("run", "run", ("n0",), found_on=cluster(ssh_config, "n0", timeout=ENDLESS))
    with pytest.raises(TimeoutError):
        run.wait(timeout=0.2)


def test_ctrl_c_ends_ps_at_once_while_mute_servers_are_waited_for(
    servers: list[socket.socket], ssh_config: Path, tmp_path: Path
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(cluster_text(ssh_config, "n[0-7]", timeout=ENDLESS))
    command = [sys.executable, "-m", "dslaunch", "ps", str(file)]
    environ = {**os.environ, "DSLAUNCH_STATE": str(tmp_path / "state")}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE) as process:
        servers[0].settimeout(300)
        connection, _ = servers[0].accept()
        with connection:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (130, b"")
