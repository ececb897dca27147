"""Facts that were measured on the nodes. They can be saved to a file."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from dslaunch.json_text import json_pieces, members


class Interface(Struct, frozen=True):
    """One address of a node's network interface."""

    name: str
    address: str
    loopback: bool = False
    up: bool = True
    speed: int | None = None
    """Mbit/s; None: not reported by the driver."""
    mtu: int | None = None
    """Bytes; None: not reported by the driver."""


class Dialled(Struct, frozen=True):
    """The result of a connection to one address of the master."""

    address: str
    local: str | None = None
    """The source address of the connection; None: not connected."""
    error: str | None = None


class Directory(Struct, frozen=True):
    """A directory on one node."""

    asked: str
    path: str
    """Absolute."""
    error: str | None = None
    """Why it is not writable."""
    first: str = ""
    """The first node that has tested it: the same for all nodes that share it."""
    made: bool = False
    """Whether the test created it."""


class Accelerators(Struct, frozen=True):
    """The accelerators of one vendor in a node."""

    vendor: str
    """`nvidia`, `amd`, ...; see `protocol/values.py`, `Vendor`."""
    devices: int
    """Number of devices that programs can open."""
    bus: int = 0
    """Number of devices on the PCI bus, with or without a driver."""


class NodeFacts(Struct, frozen=True):
    """The facts of one node."""

    host: str
    machine: str
    """Equal for nodes that are the same machine: they share kernel and network."""
    home: str
    interfaces: tuple[Interface, ...] = ()
    master_resolves: tuple[str, ...] = ()
    """The addresses to which this node resolves the name of the master."""
    interpreter: str | None = None
    """Path of the job's interpreter; None: not found."""
    gpus: int | None = None
    """Number of GPUs of the driver; None: no driver."""
    gpu_error: str | None = None
    accelerators: tuple[Accelerators, ...] = ()
    """Accelerators of all vendors in sysfs and /dev; empty: none, or not recorded."""
    dialled: tuple[Dialled, ...] = ()
    directories: tuple[Directory, ...] = ()
    different: tuple[tuple[str, str | None], ...] = ()
    """Files of the job that are missing (None) or have another SHA-256 on this node."""


class PortFact(Struct, frozen=True):
    """The result of the master for the ports to try."""

    free: int | None
    taken: tuple[tuple[int, str], ...] = ()


class Facts(Struct, frozen=True):
    """The facts of all nodes in rank order; the first node is the master."""

    nodes: tuple[NodeFacts, ...]
    port: PortFact
    own_files: tuple[str, ...] = ()
    """The nodes that share the job's directory with the launching machine; its files there are the
    user's own."""

    @property
    def one_machine(self) -> bool:
        """Return whether all nodes are emulated on one machine, or there is only one."""
        return len({n.machine for n in self.nodes}) == 1


def facts_pieces(facts: Facts) -> Iterator[str]:
    """Yield facts as JSON in pieces, for a file."""
    yield from json_pieces(facts, indent=1, default=members)
    yield "\n"
