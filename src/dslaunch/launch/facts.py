"""What was found out on the nodes. Recordable to a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Interface:
    """One address of a node's network interface."""

    name: str
    address: str
    loopback: bool = False
    up: bool = True
    speed: int | None = None
    """Mbit/s; None: the driver does not say."""
    mtu: int | None = None
    """Bytes; None: the driver does not say."""


@dataclass(frozen=True, slots=True)
class Dialled:
    """Whether the master answered at one of its addresses."""

    address: str
    local: str | None = None
    """The caller's own address on that route; None: no answer."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory as one node sees it."""

    asked: str
    path: str
    """Absolute."""
    error: str | None = None
    """Why nothing can be written there."""
    seen: tuple[str, ...] = ()
    """The nodes whose marks are visible there, this one's included."""
    made: bool = False
    """Whether it was not there before it was asked about."""


@dataclass(frozen=True, slots=True)
class Accelerators:
    """The accelerators of one vendor in a node."""

    vendor: str
    """`nvidia`, `amd`, ...; see `protocol/values.py`, `Vendor`."""
    devices: int
    """That programs can open."""
    bus: int = 0
    """On the PCI bus, with or without a driver."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What one node said of itself."""

    host: str
    machine: str
    """Equal for two nodes that are one machine: they share kernel and network."""
    home: str
    interfaces: tuple[Interface, ...] = ()
    master_resolves: tuple[str, ...] = ()
    """The addresses that the master's name has on this node."""
    interpreter: str | None = None
    """Where the job's interpreter is; None: not there."""
    gpus: int | None = None
    """How many GPUs the driver lists; None: no driver."""
    gpu_error: str | None = None
    accelerators: tuple[Accelerators, ...] = ()
    """What the kernel shows, of every vendor; empty: none, or not recorded."""
    dialled: tuple[Dialled, ...] = ()
    directories: tuple[Directory, ...] = ()
    different: tuple[tuple[str, str | None], ...] = ()
    """The job's files that are missing (None) or have another SHA-256 here."""


@dataclass(frozen=True, slots=True)
class PortFact:
    """What the master said of the ports that it was to try."""

    free: int | None
    taken: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found out, node by node in rank order; the first is the master."""

    nodes: tuple[NodeFacts, ...]
    port: PortFact
    own_files: tuple[str, ...] = ()
    """The nodes that see the job's directory of the machine that launches: its files are the
    user's own there."""

    @property
    def one_machine(self) -> bool:
        """Whether all nodes are emulated on one machine, or there is only one."""
        return len({n.machine for n in self.nodes}) == 1


def facts_to_json(facts: Facts) -> str:
    """Render facts as JSON, for a file."""
    return json.dumps(asdict(facts), indent=1) + "\n"
