"""The values that describe a cluster: what the user says exists, fully expanded.

A cluster file (see `schema`) is folded and has defaults; these values are not: one `Node` per
machine, every default applied. They are frozen and hashable.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from dslaunch.registry import TRANSPORTS

Pairs = tuple[tuple[str, str], ...]
"""An ordered mapping of text to text as a hashable value; names are unique."""
MOST_SLOTS = 1024
"""The most slots of one node."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine that can run ranks."""

    host: str
    """Its name: what a client dials, and what hostfiles, logs and messages call it."""
    slots: tuple[int, ...]
    """The GPU indexes that may be used, ascending; each can carry one rank."""
    address: str | None = None
    """What the other nodes dial; None: found out from the nodes."""
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    jump: str | None = None
    """`[user@]host[:port]` that the connection goes through; None: as ~/.ssh/config says."""
    python: str | None = None
    """The interpreter that runs the job; None: `python3` as the node's own PATH finds it."""
    activate: str | None = None
    """A shell line run before the job's command, such as `source /opt/venv/bin/activate`."""
    env: Pairs = ()
    labels: Pairs = ()
    spare: bool = False
    """A spare waits; it is in no allocation unless it is named."""
    step_gpus: int | None = None
    """GPUs that the SLURM allocation has there, which every step must request; None: unknown."""


@dataclass(frozen=True, slots=True)
class Ssh:
    """How connections are made; user, port, key and jump host are on each node."""

    connect_timeout: float = 10.0
    """Seconds until a node that does not answer counts as unreachable."""
    fanout: int = 32
    """How many connections are opened at the same time."""
    config_file: str | None = None
    """An ssh_config to read instead of ~/.ssh/config and the system's, as `ssh -F` does."""


@dataclass(frozen=True, slots=True)
class Network:
    """What the ranks talk over; None means: decided by evidence."""

    interface: str | None = None
    master_port: int | None = None
    control_port: tuple[int, int] | None = None
    """The first and the last port on which the first node of a detached run may listen for the
    other nodes; None: any free one."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Directories on the nodes. A path without a leading `/` is relative to the node's home."""

    shared: bool | None = None
    """Whether `checkpoints` is one directory for all nodes; None: tested."""
    workdir: str | None = None
    """Where the job runs; None: the directory in which `dslaunch` was called, on every node."""
    checkpoints: str | None = None
    """Where the job saves; None: the working directory."""
    node_local: str | None = None


@dataclass(frozen=True, slots=True)
class SecretSource:
    """A secret environment variable: its name, and where its value is read when a run starts."""

    name: str
    file: str | None = None
    """A file of the caller whose content, less a final newline, is the value; None: the
    variable of that name in the caller's environment."""


@dataclass(frozen=True, slots=True)
class JobDefaults:
    """What to run when the command line names nothing."""

    script: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()
    env: Pairs = ()


@dataclass(frozen=True, slots=True)
class Container:
    """The image in which the ranks of a SLURM job run."""

    runtime: str
    image: str
    mounts: tuple[str, ...] = ()
    """`DIRECTORY`, `DIRECTORY:PATH` or `DIRECTORY:PATH:FLAGS`."""
    options: tuple[str, ...] = ()
    workdir: str | None = None
    """Where the ranks start, as the container sees it; None: the job's working directory."""
    gpu: str | None = None
    """`nvidia`, `rocm` or `none`; None: as the runtime does by itself."""
    env: tuple[str, ...] = ()
    """Names of further variables that the container gets."""


@dataclass(frozen=True, slots=True)
class Slurm:
    """What SLURM is asked for."""

    options: Pairs = ()
    """Options of sbatch that are handed on: their long names with `_` for `-`, and values."""
    job_name: str | None = None
    nodes: str | None = None
    """How many, or a range `2-4`; None: as many as are chosen."""
    gpus: str = "gres"
    """`gres`, `gpus_per_node` or `none`: which option names them."""
    gpu_label: str | None = None
    """The nodes' label that is the type of their GPUs."""
    exclusive: str | None = None
    """`true`, `false`, `user`, `mcs`; None: unless a part of a node is asked for."""
    output: str | None = None
    requeue: int | None = 0
    """How often the job may go back into the queue; None: as the site has set it."""
    signal: str | None = None
    """`USR1@600`: what the ranks get so many seconds before the time limit."""
    supervised: bool = False
    """Whether the job runs `dslaunch run --slurm`."""
    restarts: int | None = None
    """How often the ranks are restarted within the job; None: as the launcher does by itself."""
    setup: tuple[str, ...] = ()
    """Shell lines before the start, on the first node."""
    teardown: tuple[str, ...] = ()
    """Shell lines after the end, on the first node."""
    shell: str = "/bin/bash"
    """The interpreter of the batch script, with at most one option."""
    srun: tuple[str, ...] = ()
    """More words for srun: options, and `NAME=value` for its environment."""
    master_suffix: str = ""
    container: Container | None = None
    directives: tuple[str, ...] = ()
    """More `#SBATCH` options, verbatim."""
    displaced: tuple[str, ...] = ()
    """The options of sbatch that `directives` have instead of ours (`slurm.directive_settings`)."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """How checks are judged on this cluster."""

    skip: tuple[str, ...] = ()
    severity: Pairs = ()
    """Check -> what its failures and warnings count as: `fail`, `warn` or `info`."""
    limits: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = ()
    """Check -> its thresholds that are not the usual ones."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Everything that the user says exists."""

    name: str
    nodes: tuple[Node, ...]
    transport: str = "auto"
    """How nodes are reached; `auto`: `fabric`, or `openssh` if the SSH configuration needs it."""
    ssh: Ssh = field(default_factory=Ssh)
    network: Network = field(default_factory=Network)
    storage: Storage = field(default_factory=Storage)
    env: Pairs = ()
    env_from: tuple[str, ...] = ()
    """Names or `*` patterns of variables that are copied from the caller's environment."""
    secrets: tuple[SecretSource, ...] = ()
    launcher: str = "torchrun"
    slurm: Slurm = field(default_factory=Slurm)
    preflight: Preflight = field(default_factory=Preflight)
    job: JobDefaults | None = None

    @property
    def over_ssh(self) -> bool:
        """Whether nodes are logged in to over SSH."""
        kind = TRANSPORTS.find(self.transport)
        return kind is not None and kind.over_ssh

    @property
    def same_machine(self) -> bool:
        """Whether all nodes are emulated on this machine."""
        kind = TRANSPORTS.find(self.transport)
        return kind is not None and kind.same_machine

    @property
    def by_steps(self) -> bool:
        """Whether nodes are reached by steps of a SLURM allocation."""
        kind = TRANSPORTS.find(self.transport)
        return kind is not None and kind.by_steps

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Cluster:
        """Read and check a cluster file. Nodes emulated on this machine run our own Python.

        Raises ConfigError with everything that is wrong in the file.
        """
        from dslaunch.cluster.load import load_cluster

        cluster = load_cluster(Path(path))
        if not cluster.same_machine:
            return cluster
        nodes = (
            node if node.python or node.activate else replace(node, python=sys.executable)
            for node in cluster.nodes
        )
        return replace(cluster, nodes=tuple(nodes))


@dataclass(frozen=True, slots=True)
class Placement:
    """One node's part of an allocation."""

    node: Node
    slots: tuple[int, ...]
    """The slots used, a non-empty subset of the node's, ascending."""
    node_rank: int
    first_rank: int
    """The global rank of the process on `slots[0]`; the others follow."""

    @property
    def ranks(self) -> range:
        """The global ranks on this node."""
        return range(self.first_rank, self.first_rank + len(self.slots))


@dataclass(frozen=True, slots=True)
class Allocation:
    """The part of a cluster that a run uses, in rank order."""

    placements: tuple[Placement, ...]

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.placements[-1].ranks.stop if self.placements else 0

    @property
    def hosts(self) -> tuple[str, ...]:
        """The nodes' names in rank order."""
        return tuple(p.node.host for p in self.placements)

    @classmethod
    def of(cls, chosen: list[tuple[Node, tuple[int, ...]]]) -> Allocation:
        """Number the chosen nodes and slots: node ranks and ranks follow the given order."""
        placements, rank = [], 0
        for node_rank, (node, slots) in enumerate(chosen):
            placements.append(Placement(node, slots, node_rank, rank))
            rank += len(slots)
        return cls(tuple(placements))
