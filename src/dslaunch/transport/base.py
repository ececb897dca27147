"""The interface of all transports: one connection per node, programs on it, bytes to and from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster, Node
    from dslaunch.errors import FailureKind


class Channel(Protocol):
    """Bytes to and from one program on a node. One thread may read while another writes; a third
    may call `close`, which ends both."""

    def read(self) -> bytes:
        """Wait for standard output of the program and return it; empty at its end."""

    def write(self, data: bytes) -> None:
        """Send all of `data` to its standard input. Raises OSError if it has exited."""

    def close_input(self) -> None:
        """Close its standard input."""

    def close(self) -> None:
        """Close all its streams. Safe to call twice, never raises."""

    def wait(self, timeout: float) -> int | None:
        """Return its exit code; None if it has not exited within `timeout` seconds or the
        connection was lost. If a signal killed the shell itself, it is 128 + the signal's number
        on this machine, and None or 255 over SSH."""

    def stderr(self) -> str:
        """Return the last 64 KiB of its standard error so far; invalid UTF-8 is replaced."""


@runtime_checkable
class SharingChannel(Protocol):
    """A channel over which what several nodes get is sent once, at least for a part of the way."""

    def write_shared(self, data: bytes) -> None:
        """As `write`, for data that other nodes get too. It is kept on the way: no secrets."""


@runtime_checkable
class Connection(Protocol):
    """An open, authenticated connection to one node, with its host key verified."""

    def start(self, line: str) -> Channel:
        """Run a POSIX shell line on the node (the login shell is given `exec /bin/sh -c ...`)."""

    def close(self) -> None:
        """Close the connection and all channels on it. Safe to call twice, never raises."""


@runtime_checkable
class Transport(Protocol):
    """Connects to nodes."""

    def connect(self, node: Node) -> Connection:
        """Open a connection within the cluster's connect timeout.

        Raises NodeError with one classified failure. May be called from many threads at once.
        """

    def close(self) -> None:
        """Close what connections share, such as jump hosts. Never raises."""


@dataclass(frozen=True, slots=True)
class Detour:
    """A node that its parent in a tree could not log in to."""

    host: str
    parent: str
    kind: FailureKind
    """Why not."""


@runtime_checkable
class Detouring(Protocol):
    """A transport that reaches nodes through others, or on another way where that fails."""

    def detours(self) -> tuple[Detour, ...]:
        """Return the nodes that were not reached as intended so far."""


@dataclass(frozen=True, slots=True)
class TransportType:
    """A transport in the registry. Code asks for its capabilities, never for its name."""

    make: Callable[[Cluster], Transport]
    summary: str
    """How nodes are reached, for help texts."""
    over_ssh: bool = False
    """It logs in over SSH: host keys and the user's SSH configuration apply."""
    through_nodes: bool = False
    """Nodes log in to other nodes, and each limits how many it connects to."""
    ssh_program: bool = False
    """It starts the system's ssh."""
    same_machine: bool = False
    """All nodes are emulated on this machine."""
    by_steps: bool = False
    """Programs are steps of the current SLURM allocation, and end with their step."""
