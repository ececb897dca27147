"""SSH through Paramiko: one verified connection per node, raw bytes over its channels.

Paramiko finds keys and the agent. It neither reads a configuration nor decides about a host's key.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dslaunch.errors import NodeError
from dslaunch.transport import loop
from dslaunch.transport.base import TransportType
from dslaunch.transport.classify import Scene, Symptom, failure, symptom_of
from dslaunch.transport.fulfill import fulfill
from dslaunch.transport.future import Future
from dslaunch.transport.process import login_line
from dslaunch.transport.retry import when_throttled
from dslaunch.transport.ssh.files import KnownHosts, client_of
from dslaunch.transport.ssh.known_hosts import (
    Entry,
    HostName,
    decide,
    fingerprint,
    key_types,
    type_name,
)
from dslaunch.transport.ssh.lingering import LingeringSockets
from dslaunch.transport.ssh.route import Hop, RouteError, route
from dslaunch.transport.ssh.scene import scene_at
from dslaunch.transport.ssh.shared_keys import SharedKeys

if TYPE_CHECKING:
    import paramiko

    from dslaunch.cluster.model import Cluster, Node, Ssh
    from dslaunch.transport.ssh.paramiko_link import ParamikoChannel

KEEPALIVE = 15
WINDOW = 256 * 1024
"""Bytes that a program may have sent before they are taken. Heartbeats, and the end of a
connection, come behind them: with Paramiko's 2 MiB, those of a hundred nodes that print all the
time were a minute late."""
JumpHost = tuple[str, str, int]
"""The user, the host and the port of a jump host."""


class FabricConnection:
    """An open connection to a node."""

    def __init__(
        self, client: paramiko.SSHClient, lingering: LingeringSockets, timeout: float
    ) -> None:
        self._client, self._transport = client, _transport_of(client)
        self._lingering = lingering
        self._timeout = timeout

    def start(self, line: str, text: Sequence[bytes] = ()) -> ParamikoChannel:
        """Run a shell line on the node. Raises OSError if its server does not start it."""
        import paramiko

        from dslaunch.transport.ssh.paramiko_link import ParamikoChannel

        began = time.monotonic()
        # Paramiko waits without a limit for the answer to a request
        limit = loop.shared().call_later(self._timeout, self._give_up)
        try:
            session = self._transport.open_session(window_size=WINDOW, timeout=self._timeout)
            channel = ParamikoChannel(session)
            channel.start(login_line(line), text)
        except (paramiko.SSHException, EOFError) as error:
            if time.monotonic() - began >= self._timeout:
                why = f"the SSH server did not start a program within {self._timeout:g} s"
                raise TimeoutError(why) from error
            raise ConnectionError(f"the SSH server did not start a program: {error}") from error
        finally:
            limit.cancel()
        return channel

    def _give_up(self) -> None:
        """Close the connection without waiting."""
        threading.Thread(target=self.close, daemon=True).start()

    def close(self) -> None:
        """Close the connection."""
        _close(self._client, self._lingering)


def _close(client: paramiko.SSHClient, lingering: LingeringSockets) -> None:
    """Close a connection. One through a jump host is a channel of that host's, not a socket."""
    transport = client.get_transport()
    if transport is not None and isinstance(transport.sock, socket.socket):
        lingering.end(transport.sock)
    with contextlib.suppress(OSError, EOFError):
        client.close()


def _transport_of(client: paramiko.SSHClient) -> paramiko.Transport:
    """Return what carries a connection. Raises EOFError for one that was closed."""
    transport = client.get_transport()
    if transport is None:
        raise EOFError("closed")
    return transport


class FabricTransport:
    """Connects through Paramiko; jump hosts are connected to once and shared by their nodes."""

    def __init__(self, ssh: Ssh) -> None:
        # it logs what it also raises; without a handler that would land on the terminal
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        self._timeout = ssh.connect_timeout
        self._ssh = ssh
        self._client = client_of(ssh)
        self._known = KnownHosts()
        self._keys = SharedKeys()
        self._jumps: dict[tuple[JumpHost, ...], Future[paramiko.SSHClient]] = {}
        """The connections to jump hosts, also those that are being made or have failed."""
        self._lingering = LingeringSockets()
        self._jumping = threading.Lock()

    def connect(self, node: Node) -> FabricConnection:
        """Open a connection, its host key verified. Raises NodeError."""
        return when_throttled(lambda: self._try(node))

    def _try(self, node: Node) -> FabricConnection:
        try:
            return FabricConnection(self._open(node), self._lingering, self._timeout)
        except RouteError as error:
            scene, found = Scene(node), Symptom("route", str(error))
        except _HopError as error:
            scene = scene_at(
                error.hop,
                node=node,
                ssh=self._ssh,
                client=self._client,
                known=self._known,
            )
            found = error.symptom
        raise NodeError((failure(scene, found),))

    def close(self) -> None:
        """Close the connections to jump hosts, and wait until every host has confirmed its end."""
        with self._jumping:
            jumps = list(self._jumps.values())
        for jump in jumps:  # one that is still being made is closed when it is
            jump.add_done_callback(self._close_jump)
        self._lingering.wait()

    def _close_jump(self, made: Future[paramiko.SSHClient]) -> None:
        if made.exception() is None:
            _close(made.result(), self._lingering)

    # ------------------------------------------------------------ connecting

    def _open(self, node: Node) -> paramiko.SSHClient:
        *jumps, target = route(self._client, node)
        return self._dial(target, self._gateway(jumps))

    def _gateway(self, jumps: Sequence[Hop]) -> paramiko.SSHClient | None:
        """Return the connection to the last jump host. Raises _HopError."""
        gateway: paramiko.SSHClient | None = None
        chain: tuple[JumpHost, ...] = ()
        for hop in jumps:  # each is reached through the one before
            chain = (*chain, (hop.user, hop.host, hop.port))
            gateway = self._jump(chain, hop, gateway)
        return gateway

    def _jump(
        self, chain: tuple[JumpHost, ...], hop: Hop, gateway: paramiko.SSHClient | None
    ) -> paramiko.SSHClient:
        """Return the connection to one jump host. Raises _HopError.

        Threads that need it at the same time share one try and its failure: a jump host that does
        not answer takes one timeout, not one for each node behind it.
        """
        with self._jumping:
            shared = self._jumps.get(chain)
            is_first = shared is None or _has_ended(shared)
            if shared is None or is_first:
                shared = self._jumps[chain] = Future()
        if is_first:
            fulfill(shared, lambda: self._dial(hop, gateway))
        return shared.result()

    def _dial(self, hop: Hop, gateway: paramiko.SSHClient | None) -> paramiko.SSHClient:
        """Return a client that is logged in to one host, its key verified. Raises _HopError."""
        if hop.proxy_command is not None:
            raise RouteError(f"{hop.alias}: ProxyCommand needs `transport: openssh`")
        began = time.monotonic()
        way = self._way_to(hop, gateway)
        from dslaunch.transport.ssh.paramiko_link import SharingClient

        client = SharingClient(self._keys)
        try:
            self._log_in(client, hop, way)
        except BaseException as error:
            waited = time.monotonic() - began
            symptom = _with_methods(symptom_of(error), client, hop.user)
            if symptom.kind in ("throttled", "protocol") and waited >= self._timeout:
                # closed at once: overload; closed after the whole timeout: a hung server
                symptom = Symptom("timeout", "connected, but the SSH server sent no banner")
            # its thread would continue to read whatever the host sends
            client.close()
            if not isinstance(error, Exception):
                raise
            raise _HopError(hop, symptom) from error
        transport = _transport_of(client)
        transport.set_keepalive(KEEPALIVE)
        # Paramiko's thread would look ten times a second whether there is something to do
        transport.sock.settimeout(KEEPALIVE)
        return client

    def _way_to(
        self, hop: Hop, gateway: paramiko.SSHClient | None
    ) -> socket.socket | paramiko.Channel:
        """Return a TCP connection to a host, which its jump host makes if it has one.

        Paramiko could make it, too, but takes longer to be imported than a server to answer.
        Raises _HopError.
        """
        try:
            if gateway is None:
                return socket.create_connection((hop.host, hop.port), self._timeout)
            return _transport_of(gateway).open_channel(
                "direct-tcpip", (hop.host, hop.port), ("", 0), timeout=self._timeout
            )
        except Exception as error:
            raise _HopError(hop, symptom_of(error)) from error

    def _log_in(
        self, client: paramiko.SSHClient, hop: Hop, way: socket.socket | paramiko.Channel
    ) -> None:
        """Log in to a host over a connection to it; accept no key that is not known."""
        entries = self._known.about(hop.known_hosts, hop.known_as)
        verify: Any = _Verify(entries, hop.known_as)
        client.set_missing_host_key_policy(verify)
        options: dict[str, Any] = {
            "sock": way,
            "timeout": self._timeout,
            "banner_timeout": self._timeout,
            "auth_timeout": self._timeout,
            "channel_timeout": self._timeout,
            "transport_factory": _transports(key_types(entries, hop.known_as)),
            # Paramiko ends at the first file that is missing; ssh continues with the next one
            "key_filename": [str(f) for f in hop.identity_files if os.access(f, os.R_OK)],
            # as ssh does it: a key that is named replaces the ones with standard names
            "look_for_keys": not hop.identity_files,
            "allow_agent": not hop.only_these_keys,
        }
        client.connect(hop.host, port=hop.port, username=hop.user, **options)


def _has_ended(made: Future[paramiko.SSHClient]) -> bool:
    """Return whether a connection could not be made, or has ended since."""
    if not made.done():
        return False
    if made.exception() is not None:
        return True
    transport = made.result().get_transport()
    return transport is None or not transport.is_active()


class HostKeyUnknown(Exception):
    """No known_hosts file has a key for this host."""


class HostKeyChanged(Exception):
    """The known_hosts files have other keys for this host."""


class HostKeyRevoked(Exception):
    """A known_hosts file marks this host's key as revoked."""


class _HopError(Exception):
    """A host on the route could not be connected to."""

    def __init__(self, hop: Hop, symptom: Symptom) -> None:
        super().__init__(symptom.kind)
        self.hop, self.symptom = hop, symptom


def _with_methods(symptom: Symptom, client: paramiko.SSHClient, user: str) -> Symptom:
    """Ask a server that refused a login which ways to log in it offers.

    Paramiko's exception may be about another key than the one that was refused: once the host's
    key is accepted, every failure is one to log in.
    """
    import paramiko

    transport = client.get_transport()
    if transport is None or not transport.is_active():
        return symptom
    if symptom.kind not in ("authentication", "protocol"):
        return symptom
    try:
        transport.get_remote_server_key()
    except paramiko.SSHException:
        return symptom  # no host key has been seen yet
    refused = replace(symptom, kind="authentication", said="")
    try:
        transport.auth_none(user)
    except paramiko.BadAuthenticationType as answer:
        return replace(refused, methods=tuple(answer.allowed_types))
    except (paramiko.SSHException, OSError, EOFError):
        return refused
    return refused


class _Verify:
    """Decides about a host's key. Paramiko asks it about every key: its own tables stay empty,
    since they know neither patterns nor revoked keys, and one key of each type."""

    def __init__(self, entries: Sequence[Entry], known_as: HostName) -> None:
        self._entries, self._known_as = entries, known_as

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        """Raise an error with the key's fingerprint, unless the key is known."""
        status = decide(self._entries, self._known_as, key.asbytes())
        if status == "known":
            return
        errors = {"changed": HostKeyChanged, "revoked": HostKeyRevoked}
        error = errors.get(status, HostKeyUnknown)
        raise error(f"{type_name(key.get_name())} {fingerprint(key.asbytes())}")


def _transports(known: Sequence[str]) -> Callable[..., paramiko.Transport]:
    """Return what makes Paramiko's transports, which ask a server for a key of a known type."""
    from dslaunch.transport.ssh.paramiko_link import QueueingTransport

    def make_transport(sock: Any, **options: Any) -> paramiko.Transport:
        transport = QueueingTransport(sock, **options)
        security = transport.get_security_options()
        # RSA keys are called by their signatures there: rsa-sha2-512
        types = list(security.key_types)
        types.sort(key=lambda name: _key_type(name) not in known)
        security.key_types = types
        return transport

    return make_transport


def _key_type(algorithm: str) -> str:
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def make(cluster: Cluster) -> FabricTransport:
    """Return the transport for a cluster."""
    return FabricTransport(cluster.ssh)


TRANSPORT = TransportType(
    make,
    summary="SSH inside dslaunch",
    over_ssh=True,
    client="dslaunch.transport.ssh.paramiko_link",
)
