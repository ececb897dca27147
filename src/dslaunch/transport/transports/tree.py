"""A tree over SSH: the launcher logs in to a few nodes, and these to the others.

Inner nodes run a relay (`node/relay.py`), which logs in to its children by the node's own ssh and
carries their bytes. Each node is a connection as with the other transports. A node that its parent
cannot log in to is reached through another parent, and without one by the launcher itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dslaunch import log
from dslaunch.errors import FailureKind, NodeError, NodeFailure
from dslaunch.node import relay_frames
from dslaunch.registry import TRANSPORTS
from dslaunch.transport import program
from dslaunch.transport.base import Detour, TransportType
from dslaunch.transport.classify import from_words
from dslaunch.transport.fulfill import fulfill
from dslaunch.transport.future import Future
from dslaunch.transport.node_login import child_of, login_options
from dslaunch.transport.relay_link import LoginRefusedError, RelayLink, RelayLostError
from dslaunch.transport.retry import when_throttled
from dslaunch.transport.ssh.files import client_of
from dslaunch.transport.tree_shape import tree_shape

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster, Node
    from dslaunch.transport.base import Channel, Connection, Transport
    from dslaunch.transport.node_login import Child
    from dslaunch.transport.relay_link import RelayedChannel

AUTHENTICATION = 60.0
"""Seconds for a login, in addition to `ssh.connect_timeout`."""
RELAY_DELAY = 10.0
"""Seconds in which a relay must report a login that took all its time."""
START_TIMEOUT = 20.0
"""Seconds for a relay to start."""
PING_INTERVAL = 1.0
"""Seconds between two pings of a relay."""
MOST_UNANSWERED = 5
"""Pings in a row after which a relay that has sent nothing counts as lost: counted, and not the
seconds, in which the launcher itself may have been stopped."""
DOUBTFUL = 2
"""Pings in a row after which a relay that has sent nothing is not chosen as another parent."""
REST = 15.0
"""Seconds for which the node of a lost relay is not made a parent again."""
OF_THE_CHILD = ("refused", "timeout", "no-route")
"""Failures of a login which say that the child itself is not there: no other parent is tried."""
UNFIT_AFTER = 2
"""Logins of a parent that must fail until it is not tried again, if none has succeeded. Without it,
nodes that cannot log in to each other would take as many tries as there are nodes."""
CLOSED_AT_ONCE = 32
"""Relays that are ended at the same time."""
_log = log.Log(__name__)


class TreeConnection:
    """A node behind a relay. Each program on it has its own login."""

    __slots__ = ("_channels", "_child", "_link", "_login_timeout", "_unused")

    def __init__(
        self, link: RelayLink, child: Child, login_timeout: float, first: RelayedChannel
    ) -> None:
        """`first`: a login that no program uses yet."""
        self._link, self._child, self._login_timeout = link, child, login_timeout
        self._unused: RelayedChannel | None = first
        self._channels = [first]

    def start(self, line: str, text: Sequence[bytes] = ()) -> Channel:
        """Run a shell line on the node. Raises OSError."""
        channel, self._unused = self._unused or self._open(), None
        channel.write(line.encode() + b"\n")
        for piece in text:
            channel.write_text(piece)
        return channel

    def close(self) -> None:
        """End all logins."""
        for channel in self._channels:
            channel.close()

    def _open(self) -> RelayedChannel:
        try:
            channel = self._link.open(self._child, self._login_timeout)
        except LoginRefusedError as error:
            raise ConnectionError(f"no further login: {error.words[-200:]}") from error
        self._channels.append(channel)
        return channel


class SharedConnection:
    """The connection to an inner node, which its relay and its other programs share."""

    __slots__ = ("_changing", "_is_closed", "_uses", "connection")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._uses: set[SharedUse] = set()
        self._is_closed = False
        self._changing = threading.Lock()

    def join(self) -> SharedUse | None:
        """Return a further use of the connection; None if it was closed after its last."""
        with self._changing:
            if self._is_closed:
                return None
            use = SharedUse(self)
            self._uses.add(use)
            return use

    def leave(self, use: SharedUse) -> None:
        """Close the connection after its last use. Safe to call twice for a use."""
        with self._changing:
            self._uses.discard(use)
            self._is_closed = not self._uses
        if self._is_closed:
            self.connection.close()


class SharedUse:
    """A connection for one of those that share it."""

    __slots__ = ("_channels", "_shared")

    def __init__(self, shared: SharedConnection) -> None:
        self._shared = shared
        self._channels: list[Channel] = []

    def start(self, line: str, text: Sequence[bytes] = ()) -> Channel:
        """Run a shell line on the node. Raises OSError."""
        channel = self._shared.connection.start(line, text)
        self._channels.append(channel)
        return channel

    def close(self) -> None:
        """End what was started by this use. Safe to call twice, at the same time too."""
        self._shared.leave(self)  # first: where the network is gone, a channel may not close
        for channel in self._channels:
            channel.close()

    def abandon(self) -> None:
        """Close the connection for all that share it."""
        self._shared.connection.close()


class Relay:
    """A running relay with its connection."""

    def __init__(self, host: str, link: RelayLink, use: SharedUse) -> None:
        self.host, self.link, self._use = host, link, use

    def look(self) -> None:
        """Ask whether it is there; end it if it does not answer."""
        if self.link.over:
            self._use.close()
        elif self.link.unanswered >= MOST_UNANSWERED:
            _log.info("relay-lost", node=self.host)
            self.link.abandon()  # first: to close the connection may take some time
            self._use.abandon()
        else:
            self.link.ping()

    def close(self) -> None:
        """End all logins of the relay, then the relay."""
        self.link.close()
        self._use.close()


class ParentLogins:
    """Which nodes can log in to others, as far as they have tried."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._working: set[str] = set()
        """The nodes that have logged in to a child."""
        self._failures: dict[str, list[FailureKind]] = {}
        """Logins that failed for another reason than the child's absence, by parent."""

    def note_success(self, parent: str) -> None:
        """Take note that a node has logged in to a child."""
        with self._changing:
            self._working.add(parent)

    def note_failure(self, parent: str, kind: FailureKind) -> None:
        """Take note that a node could not log in to a child."""
        if kind not in OF_THE_CHILD:
            with self._changing:
                self._failures.setdefault(parent, []).append(kind)

    def why_unfit(self, parent: str) -> FailureKind | None:
        """Return why a node is not tried as a parent any more, its last failure; None: it may be
        tried."""
        with self._changing:
            failures = self._failures.get(parent, [])
            is_unfit = len(failures) >= UNFIT_AFTER and parent not in self._working
            return failures[-1] if is_unfit else None


class TreeTransport:
    """Connects to the nodes of a cluster over a tree; `flat` makes the launcher's own logins."""

    def __init__(self, cluster: Cluster, flat: Transport) -> None:
        self._flat = flat
        self._timeout = cluster.ssh.connect_timeout
        self._login_timeout = self._timeout + AUTHENTICATION
        self._client = client_of(cluster.ssh)
        self._nodes = {node.host: node for node in cluster.nodes}
        self._shape = tree_shape(tuple(self._nodes), cluster.ssh.tree_fanout)
        self._inner = frozenset(self._shape.inner)
        self._changing = threading.Lock()
        self._shared: dict[str, Future[SharedConnection]] = {}
        """Connections to inner nodes for their first use."""
        self._relays: dict[str, Future[Relay]] = {}
        self._detours: list[Detour] = []
        self._parents = ParentLogins()
        self._closed = threading.Event()
        self._watching = False

    def connect(self, node: Node) -> Connection:
        """Open a connection. Raises NodeError."""
        if node.host in self._inner:
            return self._use_of(node)
        return self._reach(node)

    def detours(self) -> tuple[Detour, ...]:
        """Return the nodes that were not reached through their parents so far."""
        with self._changing:
            return tuple(self._detours)

    def close(self) -> None:
        """End all relays, those nearest to the launcher first: they end what is behind them."""
        self._closed.set()
        by_level: dict[int, list[Relay]] = {}
        for relay in self._running():
            by_level.setdefault(self._shape.level(relay.host), []).append(relay)
        with ThreadPoolExecutor(max_workers=CLOSED_AT_ONCE) as pool:
            for _, relays in sorted(by_level.items()):
                list(pool.map(Relay.close, relays))
        self._flat.close()

    # ------------------------------------------------------------ inner nodes

    def _use_of(self, node: Node) -> SharedUse:
        """Return a use of the shared connection of an inner node. Raises NodeError.

        The first two share it: the relay and the program that the caller starts. Who asks again
        has lost one, and gets another.
        """
        with self._changing:
            shared = self._shared.pop(node.host, None)
            is_first = shared is None
            if shared is None:
                shared = self._shared[node.host] = Future()
        if is_first:
            fulfill(shared, lambda: SharedConnection(self._reach(node)))
        use = shared.result().join()
        return use or self._own(node)

    def _own(self, node: Node) -> SharedUse:
        use = SharedConnection(self._reach(node)).join()
        assert use is not None
        return use

    def _relay(self, host: str) -> Relay:
        """Return the running relay of an inner node. Raises RelayLostError, NodeError."""
        with self._changing:
            if self._closed.is_set():
                raise RelayLostError("no longer needed")
            future = self._relays.get(host)
            is_first = future is None or self._may_start_again(future)
            if future is None or is_first:
                future = self._relays[host] = Future()
        if is_first:
            fulfill(future, lambda: self._start_relay(self._nodes[host]))
        relay = future.result()
        if relay.link.over:
            raise RelayLostError("the relay was lost")
        return relay

    def _start_relay(self, node: Node) -> Relay:
        use = self._use_of(node)
        try:
            options = login_options(self._timeout)
            arguments = {"options": options, "login_timeout": self._login_timeout}
            text = program.text("relay", arguments)
            link = RelayLink(use.start(program.line(node), text))
            link.begin(START_TIMEOUT)
        except OSError:
            use.close()
            raise
        relay = Relay(node.host, link, use)
        if self._closed.is_set():  # meanwhile: `close` has not seen it
            relay.close()
            raise RelayLostError("no longer needed")
        self._watch()
        _log.info("relay-started", node=node.host)
        return relay

    def _may_start_again(self, future: Future[Relay]) -> bool:
        """Return whether a relay was lost, and its node may be a parent again: after a rest, or at
        once where all are lost, which is a fault of the launcher's network."""
        if not future.done() or future.exception() is not None:
            return False
        lost = future.result().link
        if not lost.over:
            return False
        started = self._running()
        all_lost = len(started) > 1 and all(relay.link.over for relay in started)
        return all_lost or time.monotonic() - lost.ended_at > REST

    def _watch(self) -> None:
        """Look after all relays, from the first on."""
        with self._changing:
            starts, self._watching = not self._watching, True
        if starts:
            threading.Thread(target=self._look, name="relay pings", daemon=True).start()

    def _look(self) -> None:
        while not self._closed.wait(PING_INTERVAL):
            for relay in self._running():
                relay.look()

    def _running(self) -> list[Relay]:
        started = [future for future in list(self._relays.values()) if future.done()]
        return [future.result() for future in started if future.exception() is None]

    # ------------------------------------------------------------ children

    def _reach(self, node: Node) -> Connection:
        """Connect through a parent, else directly. Raises NodeError."""
        for parent in self._candidates(node.host):
            kind = self._parents.why_unfit(parent)
            if kind is None:
                try:
                    return self._through(parent, node)
                except NodeError as error:
                    kind = error.failures[0].kind
                    self._parents.note_failure(parent, kind)
                except _NoParentError:
                    kind = "lost"
            _log.info("detour", node=node.host, parent=parent, kind=kind)
            with self._changing:
                self._detours.append(Detour(node.host, parent, kind))
            if kind in OF_THE_CHILD:
                break
        if self._closed.is_set():
            raise NodeError((NodeFailure(node.host, "lost", "no longer needed"),))
        return self._flat.connect(node)

    def _candidates(self, host: str) -> Iterator[str]:
        """Yield the nodes to try as the parent: its own, and another one that does not depend on
        it."""
        parent = self._shape.parents.get(host)
        if parent is None:
            return
        yield parent
        first = self._shape.first_inner
        others = [other for other in first if other not in (parent, host) and self._works(other)]
        if others:
            yield others[self._shape.inner.index(parent) % len(others)]

    def _works(self, host: str) -> bool:
        """Return whether a node is, or may become, the parent of further nodes."""
        if self._parents.why_unfit(host) is not None:
            return False
        future = self._relays.get(host)
        if future is None or not future.done():
            return True
        if future.exception() is not None:
            return False
        link = future.result().link
        return not link.over and link.unanswered < DOUBTFUL

    def _through(self, parent: str, node: Node) -> Connection:
        """Connect through a parent. Raises NodeError if it cannot log in, _NoParentError."""
        child = child_of(self._client, node)
        timeout = self._login_timeout + RELAY_DELAY
        try:
            link = self._relay(parent).link
        except (NodeError, OSError) as error:
            raise _NoParentError(parent) from error

        def log_in() -> Connection:
            try:
                first = link.open(child, timeout)
                return TreeConnection(link, child, timeout, first)
            except LoginRefusedError as error:
                raise NodeError((_failure(node, error),)) from None
            except RelayLostError as error:
                raise _NoParentError(parent) from error

        connection = when_throttled(log_in)
        self._parents.note_success(parent)
        return connection


class _NoParentError(Exception):
    """The node of a relay was not reached, or is lost."""


def _failure(node: Node, error: LoginRefusedError) -> NodeFailure:
    """Return why a parent could not log in to a node."""
    if error.how == relay_frames.NO_SSH:
        return NodeFailure(node.host, "no-ssh", "ssh not found on its parent")
    if error.how == relay_frames.NO_LOGIN:
        return NodeFailure(node.host, "timeout", "no login in time")
    if error.how == relay_frames.INVALID:
        return NodeFailure(node.host, "name", "not a name that a relay accepts")
    return from_words(node, error.words)


def make(cluster: Cluster) -> TreeTransport:
    """Return the transport for the nodes of a cluster. Raises ToolMissingError as `choose` does."""
    from dslaunch.transport.ssh.choice import AUTO, choose

    flat = TRANSPORTS.get(choose(AUTO, cluster).name).make(cluster)
    return TreeTransport(cluster, flat)


TRANSPORT = TransportType(
    make,
    summary="SSH from node to node, for many nodes",
    over_ssh=True,
    through_nodes=True,
)
