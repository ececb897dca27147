"""How programs outside reach the nodes: an ssh_config, and cluster files for dslaunch."""

from __future__ import annotations

import os
import selectors
import shlex
import socket
import sys
from pathlib import Path

from tests.testbed.vcluster.network import address_of
from tests.testbed.vcluster.rootfs import CHECKOUT
from tests.testbed.vcluster.state import CONTROL, Cluster
from tests.testbed.vcluster.syscalls import enter_namespaces


def command_line(directory: Path) -> list[str]:
    """This program for one state directory, from any working directory."""
    python = ["env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-m", "tests.testbed.vcluster"]
    return [*python, "--state-dir", str(directory)]


def login(cluster: Cluster) -> str:
    """The account that ssh uses by default."""
    return cluster.settings.user if cluster.settings.single_uid else "root"


def ssh_config(cluster: Cluster) -> str:
    """For ssh and dslaunch on the host: the proxy connects inside the control machine."""
    directory = cluster.directory
    return f"""\
Host {CONTROL} node*
  User {login(cluster)}
  IdentityFile {directory}/keys/id_ed25519
  IdentitiesOnly yes
  UserKnownHostsFile {directory}/keys/known_hosts
  GlobalKnownHostsFile /dev/null
  ProxyCommand {shlex.join(command_line(directory))} proxy %h %p
"""


def cluster_file(cluster: Cluster, *, config_file: str | None = None, slots: int = 2) -> str:
    """A cluster file for dslaunch, run on the control machine or, with an ssh_config, outside."""
    count = cluster.settings.nodes
    many = f"[1-{count}]" if count > 1 else "1"
    address = f"    address: 10.77.0.{many}\n" if count < 256 else ""
    config = f", config_file: {config_file}" if config_file else ""
    # outside, nodes are reached by a ProxyCommand, which needs the system's client
    transport = "openssh" if config_file else "fabric"
    return f"""\
name: vcluster
nodes:
  - host: node{many}
    slots: {slots}
{address}\
transport: {transport}
ssh: {{user: {login(cluster)}, connect_timeout: 60{config}}}
python: {sys.executable}
"""


def write_access(cluster: Cluster) -> None:
    """Write the files into the state directory."""
    directory = cluster.directory
    (directory / "ssh_config").write_text(ssh_config(cluster))
    (directory / "inside.yaml").write_text(cluster_file(cluster))
    outside = cluster_file(cluster, config_file=str(directory / "ssh_config"))
    (directory / "cluster.yaml").write_text(outside)


def proxy(cluster: Cluster, host: str, port: int) -> None:
    """ssh's ProxyCommand: connect inside the control machine's network, pass bytes along."""
    target = address_of(cluster.node(host).index)
    enter_namespaces(cluster.init_of(cluster.node(CONTROL)), ["net"])
    connection = socket.create_connection((target, port))
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(connection, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                data = os.read(key.fd, 65536)
                if not data:
                    return
                if key.fd == 0:
                    connection.sendall(data)
                else:
                    _write_all(1, data)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
