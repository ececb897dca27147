"""The interface of all transports: one connection per node, programs on it, bytes to and from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec import Struct

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster, Node
    from dslaunch.errors import FailureKind


class End(Struct, frozen=True):
    """How a program on a node ended, or the connection to it."""

    code: int | None = None
    """Its exit code; None: it has not exited, or the connection was lost. If a signal killed the
    shell itself, it is 128 + the signal's number on this machine, and None or 255 over SSH."""
    stderr: str = ""
    """The last 64 KiB of its standard error; invalid UTF-8 is replaced."""
    error: str | None = None
    """Why the connection broke; None: the output ended in order, or that is not known."""


class Receiver(Protocol):
    """Takes what a program sends. It is called in the thread of all connections (`loop`), one call
    after the other, and must not block."""

    def received(self, data: bytes) -> None:
        """Take some standard output of the program."""

    def ended(self, end: End) -> None:
        """Take note of the end, also after `close`: once, after all output."""


class Channel(Protocol):
    """Bytes to and from one program on a node. May be used by many threads; nothing but `flush`
    waits."""

    def listen(self, receiver: Receiver) -> None:
        """Give all output to `receiver`; call it once."""

    def pause(self) -> None:
        """Give the receiver no output until `resume`: the program is blocked when the connection
        holds as much as it can."""

    def resume(self) -> None:
        """Continue after `pause`."""

    def write(self, data: bytes) -> None:
        """Send data to its standard input; without effect if it has exited."""

    @property
    def unsent(self) -> int:
        """How many bytes of what was written the connection has not taken yet."""

    @property
    def unread(self) -> bool:
        """Whether something has arrived here that was not decrypted or delivered yet."""

    def flush(self, timeout: float) -> bool:
        """Wait until all was sent, at most `timeout` seconds; return whether it was."""

    def close_input(self) -> None:
        """Close its standard input after all that was written."""

    def close(self) -> None:
        """Close all its streams. Safe to call twice, never raises."""


@runtime_checkable
class RelayedBytes(Protocol):
    """A channel whose bytes come over relays, with those of other nodes."""

    def others_began(self) -> float:
        """Return when a login or a program behind the same relays has begun last, on the monotonic
        clock."""


def others_began(channel: Channel) -> float:
    """Return when another node has begun last that this one may have had to wait for, on the
    monotonic clock; 0.0: it waits for none."""
    return channel.others_began() if isinstance(channel, RelayedBytes) else 0.0


@runtime_checkable
class Connection(Protocol):
    """An open, authenticated connection to one node, with its host key verified."""

    def start(self, line: str, text: Sequence[bytes] = ()) -> Channel:
        """Run a POSIX shell line on the node (the login shell is given `exec /bin/sh -c ...`).

        `text` is written to its standard input first. Its pieces are shared by all nodes, so they
        are neither joined nor copied. May wait for the node. Raises OSError.
        """

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


class Detour(Struct, frozen=True):
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


def detours_of(transport: Transport) -> tuple[Detour, ...]:
    """Return the detours of a transport; most know only one way."""
    return transport.detours() if isinstance(transport, Detouring) else ()


class TransportType(Struct, frozen=True):
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
    client: str = ""
    """The module that its connections need, if it takes long to import; see `import_client`."""
