"""The plan: all decisions for a run, as one frozen value."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dslaunch.cluster.model import Allocation, Node, Pairs, Placement
from dslaunch.json_text import json_pieces, members
from dslaunch.launch.command import Command, Var
from dslaunch.launch.decisions import Decision

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dslaunch.launch.job import Job

LOG_DIRECTORY = Var("DSLAUNCH_LOGS")
"""The node's directory for output files per rank of launchers that write them."""
RUN_DIRECTORY = Var("DSLAUNCH_NODE_DIR")
"""The node's private directory for one run; removed when the run ends."""
DS_CONFIG = "ds_config.json"
"""The file in it with the DeepSpeed config that replaces the one among the arguments."""


class Rendezvous(Struct, frozen=True, dict=True):
    """The rendezvous: the master's address and port, and the network of each node."""

    address: str
    port: int
    interfaces: Pairs = ()
    """Host -> network interface of its ranks; missing: unknown."""
    addresses: Pairs = ()
    """Host -> its address on that interface; missing: unknown."""

    @cached_property
    def interface_of(self) -> dict[str, str]:
        """Return `interfaces` as a mapping."""
        return dict(self.interfaces)

    @cached_property
    def address_of(self) -> dict[str, str]:
        """Return `addresses` as a mapping."""
        return dict(self.addresses)


class World(Struct, frozen=True, eq=False):
    """The input of every node's launcher about the whole run.

    Compared by identity, so that a launcher can cache values that are equal for all nodes.
    """

    allocation: Allocation
    rendezvous: Rendezvous
    min_nodes: int | None = None
    """The least number of nodes of an elastic run; None: all."""

    def address_of(self, placement: Placement) -> str:
        """Return the address of a node: as detected, otherwise that of the file, otherwise its
        name."""
        node = placement.node
        return self.rendezvous.address_of.get(node.host) or node.address or node.host

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return self.allocation.world_size

    @property
    def node_count(self) -> int:
        """Return the number of nodes."""
        return len(self.allocation.placements)


class Process(Struct, frozen=True):
    """One command that the agent starts on a node."""

    command: Command
    env: Pairs = ()
    """Variables besides those of the node's environment."""
    rank: int | None = None
    """Its global rank; None: a launcher, which starts the ranks of the node itself."""


class File(Struct, frozen=True):
    """A text file in the node's run directory, created before the start and removed at the end."""

    name: str
    text: str


class NodePlan(Struct, frozen=True):
    """The part of the plan for one node."""

    host: str
    node_rank: int
    slots: tuple[int, ...]
    first_rank: int
    cwd: str
    env: Pairs
    processes: tuple[Process, ...]
    files: tuple[File, ...] = ()

    @property
    def ranks(self) -> range:
        """Return the ranks of the node."""
        return range(self.first_rank, self.first_rank + len(self.slots))


class Plan(Struct, frozen=True):
    """All decisions for a run: what each node runs."""

    cluster: str
    launcher: str
    world_size: int
    rendezvous: Rendezvous
    nodes: tuple[NodePlan, ...]
    secrets: tuple[str, ...] = ()
    """Names of secret variables, which every process also gets."""
    decisions: tuple[Decision, ...] = ()


def plan_to_json(plan: Plan) -> str:
    """Return the plan as JSON in ASCII; equal plans give equal bytes.

    ASCII, because an argument that is not valid UTF-8 reaches Python as lone surrogates, which
    JSON can escape and UTF-8 cannot encode.
    """
    return "".join(plan_pieces(plan))


def plan_pieces(plan: Plan) -> Iterator[str]:
    """Yield what `plan_to_json` returns in pieces, for a file."""
    yield from json_pieces(plan, indent=2, default=_members)
    yield "\n"


def _members(value: Any) -> dict[str, Any]:
    return value.as_data() if isinstance(value, Decision) else members(value)


class Decided(Struct, frozen=True):
    """Decisions about the nodes, from evidence or assumed: the input of a plan besides the job."""

    rendezvous: Rendezvous
    workdir: str
    decisions: tuple[Decision, ...] = ()
    files: tuple[File, ...] = ()


THREADS = "OMP_NUM_THREADS"


def thread_limit(job: Job, node: Node, slots: int) -> Pairs:
    """Return the variable that gives each rank of a node one OpenMP thread; empty: there is one
    rank, or the user has set it.

    Otherwise each rank would use all cores. torch sets the same, with a warning on every node
    (2.13, distributed/run.py), and so does Accelerate (1.15, commands/launch.py).
    """
    given = {name for name, _ in (*job.env, *node.env, *job.overrides)}
    return ((THREADS, "1"),) if slots > 1 and THREADS not in given else ()


def node_environment(placement: Placement, job: Job, rendezvous: Rendezvous) -> Pairs:
    """Return the environment of a node's processes, without the variables of their launcher.

    The variables of the job, of the node, and of this run, then those that none of them sets: the
    detected interface for Gloo and NCCL; and the visible GPUs if only some are in use, or if SLURM
    allocated them, because not every site hides the other GPUs (cgroup.conf(5), ConstrainDevices).
    The interface for NCCL has the exact form `=eth0`; a bare name is a prefix (NCCL documentation,
    NCCL_SOCKET_IFNAME).
    """
    env = dict(job.env) | dict(placement.node.env) | dict(job.overrides)
    interface = rendezvous.interface_of.get(placement.node.host)
    if interface is not None:
        env.setdefault("GLOO_SOCKET_IFNAME", interface)
        env.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
    uses_some = placement.slots != tuple(range(len(placement.node.slots)))
    if uses_some or placement.node.step_gpus is not None:
        env.setdefault("CUDA_VISIBLE_DEVICES", ",".join(map(str, placement.slots)))
    return tuple(env.items())
