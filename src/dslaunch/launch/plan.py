"""The plan: the whole decision for a run, as one frozen value."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dslaunch.cluster.model import Allocation, Pairs, Placement
from dslaunch.launch.command import Command, Var
from dslaunch.launch.decisions import Decision

if TYPE_CHECKING:
    from dslaunch.launch.job import Job

LOG_DIRECTORY = Var("DSLAUNCH_LOGS")
"""The node's directory for per-rank output files of launchers that write such."""
RUN_DIRECTORY = Var("DSLAUNCH_NODE_DIR")
"""The node's private directory for one run; removed when the run ends."""


@dataclass(frozen=True)  # no slots, which leave no place for cached properties
class Rendezvous:
    """Where the ranks meet."""

    address: str
    port: int
    interfaces: Pairs = ()
    """Host -> network interface that its ranks use to reach the others; absent: not known."""
    addresses: Pairs = ()
    """Host -> its own address on that way; absent: not known."""

    @cached_property
    def interface_of(self) -> dict[str, str]:
        """`interfaces`, to be looked up in."""
        return dict(self.interfaces)

    @cached_property
    def address_of(self) -> dict[str, str]:
        """`addresses`, to be looked up in."""
        return dict(self.addresses)


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """What every node's launcher must know of the whole run.

    Equal to itself alone, so that a launcher can keep what it made of the whole for every node.
    """

    allocation: Allocation
    rendezvous: Rendezvous
    min_nodes: int | None = None
    """With how few nodes an elastic run may go on; None: all."""

    def address_of(self, placement: Placement) -> str:
        """A node's own address: found out, or the file's, or its name."""
        node = placement.node
        return self.rendezvous.address_of.get(node.host) or node.address or node.host

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.allocation.world_size

    @property
    def node_count(self) -> int:
        """How many nodes there are."""
        return len(self.allocation.placements)


@dataclass(frozen=True, slots=True)
class Process:
    """One command that the agent starts on a node."""

    command: Command
    env: Pairs = ()
    """What it needs beyond the node's environment."""
    rank: int | None = None
    """Its global rank; None: a launcher that starts the node's ranks itself."""


@dataclass(frozen=True, slots=True)
class File:
    """A text file in the node's run directory, made before the start and removed at the end."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What one node does."""

    host: str
    node_rank: int
    slots: tuple[int, ...]
    first_rank: int
    cwd: str
    env: Pairs
    processes: tuple[Process, ...]
    files: tuple[File, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole decision: what happens on every node."""

    cluster: str
    launcher: str
    world_size: int
    rendezvous: Rendezvous
    nodes: tuple[NodePlan, ...]
    secrets: tuple[str, ...] = ()
    """Names of secret variables that every process gets as well."""
    decisions: tuple[Decision, ...] = ()


def plan_to_json(plan: Plan) -> str:
    """Return the plan as JSON in ASCII; equal plans give equal bytes.

    ASCII, because an argument that is not valid UTF-8 reaches Python as lone surrogates, which
    JSON can escape and UTF-8 cannot encode.
    """
    return json.dumps(plan, indent=2, default=_members) + "\n"


def _members(value: Any) -> dict[str, Any]:
    if isinstance(value, Decision):
        return value.as_dict()
    return {field.name: getattr(value, field.name) for field in fields(value)}


@dataclass(frozen=True, slots=True)
class Decided:
    """What evidence, or assumption, says about the nodes: the input to a plan beside the job."""

    rendezvous: Rendezvous
    workdir: str
    decisions: tuple[Decision, ...] = ()
    files: tuple[File, ...] = ()


def node_environment(placement: Placement, job: Job, rendezvous: Rendezvous) -> Pairs:
    """The environment of a node's processes, less what their launcher adds.

    The job's variables, then the node's own, then this run's, then what evidence found for what
    none of them sets: the interface for Gloo and NCCL, and the visible GPUs if only some are used,
    or if SLURM gave them, which does not hide the others at every site (cgroup.conf(5),
    ConstrainDevices).
    The interface is given to NCCL in its exact form `=eth0`; a bare name is a prefix there
    (NCCL documentation, NCCL_SOCKET_IFNAME).
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
