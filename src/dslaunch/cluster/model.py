"""The values that describe a cluster, fully expanded.

A cluster file (see `schema`) has folded names and defaults. Here every machine is one `Node`, with
all defaults applied. The values are frozen and hashable.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from dslaunch.registry import TRANSPORTS

Pairs = tuple[tuple[str, str], ...]
"""An ordered, hashable mapping of text to text; names are unique."""
MOST_THROUGH_NODES = 1024
"""Nodes that are waited for at the same time, while other nodes connect to them."""
MOST_SLOTS = 1024
"""Maximum number of slots of one node."""


class Node(Struct, frozen=True):
    """One machine that can run ranks."""

    host: str
    """Its name, used by SSH, and in hostfiles, logs and messages."""
    slots: tuple[int, ...]
    """Indexes of the usable GPUs, ascending; at most one rank per index."""
    address: str | None = None
    """Address at which the other nodes reach it; None: detected on the nodes."""
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    jump: str | None = None
    """Jump host, `[user@]host[:port]`; None: from ~/.ssh/config."""
    python: str | None = None
    """Interpreter of the job; None: the first `python3` in PATH of the node."""
    activate: str | None = None
    """Shell line to run before the command of the job, such as `source /opt/venv/bin/activate`."""
    env: Pairs = ()
    labels: Pairs = ()
    spare: bool = False
    """A spare node is not allocated unless the user names it."""
    step_gpus: int | None = None
    """GPUs of the SLURM allocation on this node, which every step must request; None: unknown."""


class Ssh(Struct, frozen=True):
    """Settings of all SSH connections; user, port, key and jump host are per node."""

    connect_timeout: float = 10.0
    """Seconds until an unresponsive node counts as unreachable."""
    fanout: int = 32
    """Number of connections to open at the same time."""
    config_file: str | None = None
    """An ssh_config to use instead of ~/.ssh/config and the system's, as with `ssh -F`."""
    tree_fanout: int = 32
    """Number of nodes that each node of a tree logs in to, and this machine (transport `tree`)."""


class Network(Struct, frozen=True):
    """Network between the ranks; None: detected on the nodes."""

    interface: str | None = None
    master_port: int | None = None
    control_port: tuple[int, int] | None = None
    """First and last port on which the first node of a detached run may listen for the other
    nodes; None: any free port."""


class Storage(Struct, frozen=True):
    """Directories on the nodes. A path without a leading `/` is relative to the node's home."""

    shared: bool | None = None
    """Whether all nodes share `checkpoints`; None: tested before a run."""
    workdir: str | None = None
    """Working directory of the job; None: the current directory of the caller, on every node."""
    checkpoints: str | None = None
    """Directory of the checkpoints; None: the working directory."""
    node_local: str | None = None


class SecretSource(Struct, frozen=True):
    """A secret environment variable: its name, and the source of its value at the start of a
    run."""

    name: str
    file: str | None = None
    """A file of the caller with the value (a final newline is removed); None: the variable of that
    name in the caller's environment."""


class JobDefaults(Struct, frozen=True):
    """The job to run if the command line names none."""

    script: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()
    env: Pairs = ()


class Container(Struct, frozen=True):
    """The image in which the ranks of a SLURM job run."""

    runtime: str
    image: str
    mounts: tuple[str, ...] = ()
    """`DIRECTORY`, `DIRECTORY:PATH` or `DIRECTORY:PATH:FLAGS`."""
    options: tuple[str, ...] = ()
    workdir: str | None = None
    """Working directory of the ranks inside the container; None: that of the job."""
    gpu: str | None = None
    """`nvidia`, `rocm` or `none`; None: default of the runtime."""
    env: tuple[str, ...] = ()
    """Names of additional environment variables to pass into the container."""


class Slurm(Struct, frozen=True):
    """Resources and options of jobs submitted to SLURM."""

    options: Pairs = ()
    """Options of sbatch to pass unchanged: long names with `_` for `-`, and values."""
    job_name: str | None = None
    nodes: str | None = None
    """Number of nodes, or a range `2-4`; None: the number of selected nodes."""
    gpus: str = "gres"
    """Option to request GPUs with: `gres`, `gpus_per_node` or `none`."""
    gpu_label: str | None = None
    """Label of the nodes that holds their GPU type."""
    exclusive: str | None = None
    """`true`, `false`, `user`, `mcs`; None: true, unless CPUs or memory are set."""
    output: str | None = None
    requeue: int | None = 0
    """Maximum number of requeues; None: setting of the site."""
    signal: str | None = None
    """`USR1@600`: signal to the ranks, and seconds before the time limit."""
    supervised: bool = False
    """Whether the job runs `dslaunch run --slurm`."""
    restarts: int | None = None
    """Number of restarts within the job; None: default of the launcher."""
    setup: tuple[str, ...] = ()
    """Shell lines to run before the ranks start, on the first node."""
    teardown: tuple[str, ...] = ()
    """Shell lines to run after the ranks end, on the first node."""
    shell: str = "/bin/bash"
    """Interpreter of the batch script, with at most one option."""
    srun: tuple[str, ...] = ()
    """Additional options of srun, and `NAME=value` for its environment."""
    master_suffix: str = ""
    container: Container | None = None
    directives: tuple[str, ...] = ()
    """Additional `#SBATCH` options, passed unchanged."""
    displaced: tuple[str, ...] = ()
    """Options of sbatch that `directives` override (`slurm.directive_settings`)."""


class Preflight(Struct, frozen=True):
    """Settings of the checks on this cluster."""

    skip: tuple[str, ...] = ()
    severity: Pairs = ()
    """Check -> severity of its failures and warnings: `fail`, `warn` or `info`."""
    limits: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = ()
    """Check -> its thresholds that differ from the defaults."""


class ClusterSource(Struct, frozen=True):
    """The file that a cluster was parsed from."""

    file: str
    """The name of the file."""
    text: str

    def __repr__(self) -> str:
        return f"ClusterSource({self.file!r})"


class Cluster(Struct, frozen=True):
    """All nodes of the user, and the settings of their runs."""

    name: str
    nodes: tuple[Node, ...]
    transport: str = "auto"
    """Name of the transport; `auto`: `fabric`, or `openssh` if the SSH configuration needs it."""
    ssh: Ssh = field(default_factory=Ssh)
    network: Network = field(default_factory=Network)
    storage: Storage = field(default_factory=Storage)
    env: Pairs = ()
    env_from: tuple[str, ...] = ()
    """Names or `*` patterns of variables to copy from the caller's environment."""
    secrets: tuple[SecretSource, ...] = ()
    launcher: str = "torchrun"
    launcher_args: tuple[str, ...] = ()
    ranks: str | None = None
    """Which ranks are shown, such as `0,8-9`; None: all. All are recorded."""
    slurm: Slurm = field(default_factory=Slurm)
    preflight: Preflight = field(default_factory=Preflight)
    progress: tuple[str, ...] = ()
    """Regular expressions of output that shows the progress of the training."""
    job: JobDefaults | None = None
    source: ClusterSource | None = None
    """The file it was parsed from; None: it was made in Python."""

    @property
    def over_ssh(self) -> bool:
        """Return whether the nodes are reached over SSH."""
        kind = TRANSPORTS.find(self.transport)
        return kind is not None and kind.over_ssh

    @property
    def connected_at_once(self) -> int:
        """Return how many nodes are connected to at the same time. In a tree of nodes it is not
        this machine that connects to most of them."""
        kind = TRANSPORTS.find(self.transport)
        through_nodes = kind is not None and kind.through_nodes
        return max(self.ssh.fanout, MOST_THROUGH_NODES) if through_nodes else self.ssh.fanout

    @property
    def same_machine(self) -> bool:
        """Return whether all nodes are emulated on this machine."""
        kind = TRANSPORTS.find(self.transport)
        return kind is not None and kind.same_machine

    @property
    def by_steps(self) -> bool:
        """Return whether the nodes are reached with steps of a SLURM allocation (`srun`)."""
        kind = TRANSPORTS.find(self.transport)
        return kind is not None and kind.by_steps

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Cluster:
        """Read and check a cluster file. Nodes emulated on this machine use the current Python.

        Raises ConfigError with every problem in the file.
        """
        from dslaunch.cluster.load import load_cluster

        return load_cluster(Path(path))._with_own_python()

    @classmethod
    def parse(cls, text: str, file: str = "cluster.yaml") -> Cluster:
        """Check the text of a cluster file, as `load` does; `file` is its name in messages."""
        from dslaunch.cluster.load import parse_cluster

        return parse_cluster(text, file)._with_own_python()

    def _with_own_python(self) -> Cluster:
        """Return the cluster; nodes emulated on this machine use the current Python."""
        if not self.same_machine:
            return self
        nodes = (
            node if node.python or node.activate else replace(node, python=sys.executable)
            for node in self.nodes
        )
        return replace(self, nodes=tuple(nodes))


class Placement(Struct, frozen=True):
    """The part of an allocation on one node."""

    node: Node
    slots: tuple[int, ...]
    """The slots in use, a non-empty subset of the node's, ascending."""
    node_rank: int
    first_rank: int
    """Global rank of the process on `slots[0]`; the others follow."""

    @property
    def ranks(self) -> range:
        """Return the global ranks on this node."""
        return range(self.first_rank, self.first_rank + len(self.slots))


class Allocation(Struct, frozen=True):
    """The part of a cluster that a run uses, in rank order."""

    placements: tuple[Placement, ...]

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return self.placements[-1].ranks.stop if self.placements else 0

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of the nodes in rank order."""
        return tuple(p.node.host for p in self.placements)

    @classmethod
    def of(cls, chosen: list[tuple[Node, tuple[int, ...]]]) -> Allocation:
        """Number the chosen nodes and slots: node ranks and ranks follow the given order."""
        placements, rank = [], 0
        for node_rank, (node, slots) in enumerate(chosen):
            placements.append(Placement(node, slots, node_rank, rank))
            rank += len(slots)
        return cls(tuple(placements))
