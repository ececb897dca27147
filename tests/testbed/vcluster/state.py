"""What a cluster is: its settings and its live processes, kept in `<state-dir>/cluster.json`."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import fnmatch
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.testbed.vcluster.syscalls import kill_quietly, start_time

CONTROL = "control"
"""The machine that `dslaunch` runs on; the others are node1, node2, ..."""


class ClusterError(Exception):
    """The virtual cluster cannot do what was asked; the message says why."""


@dataclass(frozen=True, slots=True)
class Bind:
    """A directory of the host that every node sees."""

    source: str
    target: str
    read_only: bool = True

    @classmethod
    def parse(cls, text: str) -> Bind:
        """Read `SRC[:DST][:rw]`."""
        parts = text.split(":")
        writable = len(parts) > 1 and parts[-1] == "rw"
        if writable:
            parts.pop()
        source = str(Path(parts[0]).absolute())
        return cls(source, parts[1] if len(parts) > 1 else source, not writable)


@dataclass(frozen=True, slots=True)
class Slurm:
    """What was asked of SLURM."""

    gres: tuple[str, ...] = ()
    """`NODES=gpu[:KIND]:COUNT`, of which the first that fits a node is its own."""
    timeout: int = 10
    """Seconds until a node that says nothing is taken for dead."""
    accounting: bool = False
    """Whether there is a slurmdbd, for sacct."""
    other: str = ""
    """A shell pattern: these nodes are a second SLURM cluster, `other`, under the same slurmdbd."""
    job_submit: str = ""
    """A file of the host: the job_submit.lua of the first cluster."""
    min_job_age: int = 600
    """Seconds after which the controller forgets a job that is over; it looks every 10 s."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for by `up`. Sizes are those of tmpfs: memory, used when written."""

    nodes: int
    shared: str
    """The host directory that is /shared on every node."""
    mode: str = "root"
    """`root`; `subuid` or `single-uid` when an ordinary user started it (see `users`)."""
    user: str = "alice"
    uid: int = 2001
    nics: int = 1
    """Network interfaces per node, each with its own bridge."""
    disk: str = "256m"
    scratch: str = "64m"
    shm: str = "256m"
    pam: bool = False
    loopback_hostname: bool = False
    """A node's own name is 127.0.1.1 there, as Debian's installer writes it."""
    binds: tuple[Bind, ...] = ()
    own_disks: tuple[str, ...] = ()
    """Directories of every node that are a small disk each, such as /tmp."""
    slurm: Slurm | None = None

    @property
    def single_uid(self) -> bool:
        """Whether there is one account only, that of the user who started the cluster.

        Without /etc/subuid, sshd's setgroups() and setuid() fail, so that it runs in a nested
        user namespace in which that UID is not 0, and every session is that user's.
        """
        return self.mode == "single-uid"


@dataclass(frozen=True, slots=True)
class Process:
    """One process for good: a PID alone may be another process by now."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Process:
        """Identify a process that is alive now."""
        return cls(pid, start_time(pid) or "")

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return start_time(self.pid) == self.started

    def end(self) -> None:
        """Kill it and wait until it is gone; never another that got its number since."""
        if self.alive:
            kill_quietly(self.pid)
        while self.alive:
            time.sleep(0.005)


@dataclass(slots=True)
class Node:
    """One node, or the control machine, and what is wrong with it now."""

    name: str
    index: int
    """0 for the control machine."""
    init: Process | None = None
    faults: dict[str, list[str]] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether it is powered on."""
        return self.init is not None and self.init.alive


@dataclass(slots=True)
class Cluster:
    """A cluster that is up."""

    directory: Path
    settings: Settings
    nodes: dict[str, Node]
    switch: Process | None = None

    @classmethod
    def new(cls, directory: Path, settings: Settings) -> Cluster:
        """A cluster of which nothing runs yet."""
        names = [CONTROL, *(f"node{i}" for i in range(1, settings.nodes + 1))]
        nodes = {name: Node(name, index) for index, name in enumerate(names)}
        return cls(directory, settings, nodes)

    def node(self, name: str) -> Node:
        """The node of that name; ClusterError names those that exist."""
        if name not in self.nodes:
            raise ClusterError(f"no node {name!r}; there are {', '.join(self.nodes)}")
        return self.nodes[name]

    def match(self, patterns: str) -> list[Node]:
        """Nodes whose names match one of the comma-separated shell patterns."""
        found = [
            node
            for pattern in patterns.split(",")
            for node in self.nodes.values()
            if fnmatch.fnmatch(node.name, pattern)
        ]
        if not found:
            raise ClusterError(f"no node matches {patterns!r}; there are {', '.join(self.nodes)}")
        return found

    def init_of(self, node: Node) -> int:
        """The PID of a node's init; ClusterError when it is powered off."""
        if node.init is None or not node.init.alive:
            raise ClusterError(f"{node.name} is down")
        return node.init.pid


def default_directory() -> Path:
    """Where a person's cluster keeps its state, one per user."""
    given = os.environ.get("VCLUSTER_STATE")
    return Path(given) if given else Path(tempfile.gettempdir()) / f"vcluster-{os.getuid()}"


def load(directory: Path) -> Cluster | None:
    """Read the state; None when no cluster is up there."""
    file = directory.absolute() / "cluster.json"
    return _from_json(file.parent, json.loads(file.read_text())) if file.exists() else None


def require(directory: Path) -> Cluster:
    """Read the state; ClusterError when no cluster is up there."""
    cluster = load(directory)
    if cluster is None:
        raise ClusterError(f"no cluster in {directory}: run `up` first")
    return cluster


def save(cluster: Cluster) -> None:
    """Write the state at once or not at all."""
    data = dataclasses.asdict(cluster) | {"directory": str(cluster.directory)}
    temporary = cluster.directory / "cluster.json.new"
    temporary.write_text(json.dumps(data, indent=1))
    temporary.rename(cluster.directory / "cluster.json")


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other commands out of a state directory."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def changing(directory: Path) -> Iterator[Cluster]:
    """Read, change and write the state, one process at a time, even when a change fails."""
    with locked(directory):
        cluster = require(directory)
        try:
            yield cluster
        finally:
            save(cluster)


def _from_json(directory: Path, data: dict[str, Any]) -> Cluster:
    settings = data["settings"]
    settings["binds"] = tuple(Bind(**bind) for bind in settings["binds"])
    settings["own_disks"] = tuple(settings["own_disks"])
    if slurm := settings["slurm"]:
        settings["slurm"] = Slurm(**{**slurm, "gres": tuple(slurm["gres"])})
    nodes = {name: _node_from_json(node) for name, node in data["nodes"].items()}
    return Cluster(directory, Settings(**settings), nodes, _process_from_json(data["switch"]))


def _node_from_json(data: dict[str, Any]) -> Node:
    return Node(**{**data, "init": _process_from_json(data["init"])})


def _process_from_json(data: dict[str, Any] | None) -> Process | None:
    return Process(**data) if data else None
