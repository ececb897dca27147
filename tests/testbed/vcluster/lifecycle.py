"""Up and down, power off and on."""

from __future__ import annotations

import compileall
import contextlib
import gc
import os
import shutil
import socket
import subprocess
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.testbed.vcluster import network, state
from tests.testbed.vcluster.access import write_access
from tests.testbed.vcluster.accounts import make_keys
from tests.testbed.vcluster.inside import PATH
from tests.testbed.vcluster.rootfs import build_root
from tests.testbed.vcluster.services import service_command, services_of
from tests.testbed.vcluster.slurm import await_idle, await_registered, make_munge_key
from tests.testbed.vcluster.state import Cluster, ClusterError, Node, Process, Settings
from tests.testbed.vcluster.syscalls import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    kill_quietly,
    reap_forever,
    spawn_init,
)

SOURCES = Path(__file__).resolve().parents[3] / "src"
"""Compiled here: Python cannot leave its bytecode on nodes, which see this directory read-only."""
NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWPID


def up(directory: Path, settings: Settings) -> tuple[Cluster, list[str]]:
    """Start a cluster, or the dead nodes of one that is up with the same settings.

    Returns the cluster and the names of the nodes that were started. When it fails nothing is
    left but `<state-dir>.failed-log`.
    """
    os.umask(0o022)
    directory = directory.absolute()
    with state.locked(directory):
        cluster = state.load(directory) or Cluster.new(directory, settings)
        if cluster.settings != settings:
            raise ClusterError(f"another cluster is up in {directory}: run `down` first")
        try:
            started = _start_missing(cluster)
        except BaseException:
            _keep_logs(cluster)
            remove(cluster)
            raise
        state.save(cluster)
    return cluster, started


def _start_missing(cluster: Cluster) -> list[str]:
    (cluster.directory / "nodes").mkdir(exist_ok=True)
    shared = Path(cluster.settings.shared)
    if not shared.exists():
        shared.mkdir(parents=True)
        shared.chmod(0o1777)
    if not (cluster.directory / "keys").exists():
        make_keys(cluster)
        if cluster.settings.slurm:
            make_munge_key(cluster)
    compileall.compile_dir(SOURCES, quiet=1)
    write_access(cluster)
    if cluster.switch is None or not cluster.switch.alive:
        network.start_switch(cluster)
    missing = [node for node in cluster.nodes.values() if not node.alive]
    start_nodes(cluster, missing)
    if cluster.settings.slurm:
        await_idle(cluster)
        await_registered(cluster)
    return [node.name for node in missing]


def _keep_logs(cluster: Cluster) -> None:
    logs = sorted((cluster.directory / "nodes").glob("*.log"))
    target = cluster.directory.with_name(f"{cluster.directory.name}.failed-log")
    target.write_text("".join(log.read_text() for log in logs))


def start_nodes(cluster: Cluster, nodes: Sequence[Node]) -> None:
    """Start nodes side by side: fork all inits, plug in all cables, wait for all services."""
    gc.freeze()
    pending = [(node, *_start_init(cluster, node)) for node in nodes]
    if nodes:
        network.plug_in(cluster, nodes)
    for _, go, _ in pending:
        os.write(go, b"1")
    for node, go, ready in pending:
        answer = os.read(ready, 8192).decode()
        os.close(go)
        os.close(ready)
        if answer != "1":
            raise ClusterError(f"{node.name} did not start: {answer or 'its init died'}")


def _start_init(cluster: Cluster, node: Node) -> tuple[int, int]:
    (go_read, go_write), (ready_read, ready_write) = os.pipe(), os.pipe()
    log = cluster.directory / "nodes" / f"{node.name}.log"
    pid = spawn_init(NAMESPACES, lambda: _init_main(cluster, node, go_read, ready_write), log)
    node.init, node.faults = Process.of(pid), {}
    os.close(go_read)
    os.close(ready_write)
    return go_write, ready_read


def _init_main(cluster: Cluster, node: Node, go: int, ready: int) -> None:
    """PID 1 of a node."""
    try:
        root = cluster.directory / "nodes" / node.name
        root.mkdir(parents=True, exist_ok=True)
        socket.sethostname(node.name)
        build_root(cluster, node, root)
        os.read(go, 1)  # the network interfaces are there
        network.configure(cluster, node)
        os.environ.clear()
        os.environ.update(PATH=PATH, LANG="C.UTF-8", HOME="/root")
        for name in services_of(cluster, node):
            subprocess.run(service_command(cluster, node, name), check=True, close_fds=True)
        os.write(ready, b"1")
    except Exception:  # noqa: BLE001  the one who waits for this node must hear of any failure
        os.write(ready, traceback.format_exc().encode()[-4000:])
        os._exit(1)
    reap_forever()


def down(directory: Path) -> bool:
    """End everything and remove the state directory; False when nothing was up."""
    if state.load(directory) is None:
        return False
    with state.locked(directory):
        cluster = state.load(directory)
        if cluster:
            remove(cluster)
    return cluster is not None


def remove(cluster: Cluster) -> None:
    """End every process that we started, by its identity, and remove what we wrote.

    The kernel ends all other processes of a PID namespace with its init, and removes the
    mounts and cables of namespaces without processes.
    """
    victims = [node.init for node in cluster.nodes.values() if node.init]
    victims += [cluster.switch] if cluster.switch else []
    for victim in victims:
        if victim.alive:
            kill_quietly(victim.pid)
    for victim in victims:
        victim.end()
    directory = cluster.directory
    for name in ("nodes", "keys", "shared"):
        shutil.rmtree(directory / name, ignore_errors=True)
    files = "cluster.json", "cluster.yaml", "inside.yaml", "ssh_config", "switch.log", "lock"
    for name in files:
        (directory / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # somebody else's files are in it
        directory.rmdir()


def crash(cluster: Cluster, patterns: str) -> None:
    """Power nodes off: every process of theirs is gone at once; their files too."""
    for node in cluster.match(patterns):
        if node.init:
            node.init.end()


def boot(cluster: Cluster, patterns: str) -> None:
    """Power dead nodes on, with empty disks."""
    dead = [node for node in cluster.match(patterns) if not node.alive]
    network.unplug(cluster, dead)
    start_nodes(cluster, dead)
