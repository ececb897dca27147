"""What every transport offers: one connection per node, programs on it, bytes to and from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster, Node


class Channel(Protocol):
    """Bytes to and from one program that runs on a node. Reading and writing may be done by
    two threads at once; `close` may be called by a third, and ends both."""

    def read(self) -> bytes:
        """Wait for some of the program's standard output; empty at its end."""

    def write(self, data: bytes) -> None:
        """Send all of `data` to its standard input. Raises OSError when it is gone."""

    def close_input(self) -> None:
        """Close its standard input."""

    def close(self) -> None:
        """Let go of it: closes all its streams. Safe to call twice, never raises."""

    def wait(self, timeout: float) -> int | None:
        """Its exit code, or None if it has not ended within `timeout` seconds or the
        connection was lost. When a signal ended the shell itself, it is 128 + the signal's number
        on this machine; over SSH it is None or 255: sshd's word of it does not reach us."""

    def stderr(self) -> str:
        """The last 64 KiB that it wrote to its standard error so far, decoded leniently."""


class Connection(Protocol):
    """An open, authenticated connection to one node, with its host key verified."""

    def start(self, line: str) -> Channel:
        """Run a POSIX shell line on the node (the login shell is given `exec /bin/sh -c ...`)."""

    def close(self) -> None:
        """End the connection and all channels on it. Safe to call twice, never raises."""


class Transport(Protocol):
    """How nodes are reached."""

    def connect(self, node: Node) -> Connection:
        """Open a connection within the cluster's connect timeout.

        Raises NodeError with one classified failure. May be called from many threads at once.
        """

    def close(self) -> None:
        """Let go of what is shared by connections, such as jump hosts. Never raises."""


@dataclass(frozen=True, slots=True)
class TransportType:
    """A transport as the registry has it. Code asks for its capabilities, never for its name."""

    make: Callable[[Cluster], Transport]
    summary: str
    """How nodes are reached, in a few words."""
    over_ssh: bool = False
    """Nodes are logged in to over SSH: host keys and the user's SSH configuration count."""
    ssh_program: bool = False
    """It starts the system's ssh."""
    same_machine: bool = False
    """All nodes are emulated on this machine."""
    by_steps: bool = False
    """Programs are steps of the SLURM allocation that we are in, and end with their step."""
