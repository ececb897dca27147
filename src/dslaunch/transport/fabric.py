"""SSH through Fabric and Paramiko: one verified connection per node, raw bytes over its channels.

Fabric reads the configuration, finds keys and agent, and goes through jump hosts. Three things
it does are not used, since they would be traps here: its acceptance of unknown host keys
(AutoAddPolicy), its `env=` (not quoted) and its text-decoding runner.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import threading
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dslaunch.errors import NodeError, NodeFailure
from dslaunch.transport.classify import failure, from_error
from dslaunch.transport.process import PIECE, STDERR_KEPT, login_line
from dslaunch.transport.retry import when_throttled

if TYPE_CHECKING:
    from collections.abc import Iterator

    import fabric
    import paramiko

    from dslaunch.cluster.model import Cluster, Node, Ssh

KEEPALIVE = 15
USER_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"


class FabricChannel:
    """One program on a node."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def read(self) -> bytes:
        """Wait for some standard output; empty at its end."""
        return bytes(self._channel.recv(PIECE))

    def write(self, data: bytes) -> None:
        """Send all of `data`. Raises OSError when the program is gone."""
        self._channel.sendall(data)

    def close_input(self) -> None:
        """Close its standard input."""
        with contextlib.suppress(OSError, EOFError):
            self._channel.shutdown_write()

    def close(self) -> None:
        """Let go of it."""
        self._channel.close()

    def wait(self, timeout: float) -> int | None:
        """Its exit code; None if it has not ended in time or the connection is lost."""
        self._channel.status_event.wait(timeout)
        code = self._channel.exit_status
        return None if code == -1 else int(code)

    def stderr(self) -> str:
        """The last that it wrote to its standard error so far."""
        kept = b""
        while self._channel.recv_stderr_ready():
            kept = (kept + self._channel.recv_stderr(PIECE))[-STDERR_KEPT:]
        return kept.decode(errors="replace")


class FabricConnection:
    """An open connection to a node."""

    def __init__(self, connection: fabric.Connection) -> None:
        self._connection = connection

    def start(self, line: str) -> FabricChannel:
        """Run a shell line on the node."""
        channel = self._connection.transport.open_session()
        channel.exec_command(login_line(line))
        return FabricChannel(channel)

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError, EOFError):
            self._connection.close()


class FabricTransport:
    """Connects through Fabric; jump hosts are connected to once and shared by their nodes."""

    def __init__(self, ssh: Ssh) -> None:
        import fabric  # noqa: F401 - here, before threads: paramiko's imports are circular

        self._ssh = ssh
        self._jumps: dict[str, fabric.Connection] = {}
        self._jumping = threading.Lock()
        self._reading = threading.Lock()
        self._known: dict[str, paramiko.HostKeys] = {}

    def connect(self, node: Node) -> FabricConnection:
        """Open a connection, its host key verified. Raises NodeError."""
        return when_throttled(lambda: self._try(node))

    def _try(self, node: Node) -> FabricConnection:
        began = time.monotonic()
        try:
            return FabricConnection(self._open(node))
        except _JumpError as error:
            found = error.failure
        except Exception as error:  # noqa: BLE001 - each of a dozen types is classified here
            found = from_error(node, error)
        waited = time.monotonic() - began
        if found.kind in ("throttled", "protocol") and waited >= self._ssh.connect_timeout:
            # dropped at once is an overload, dropped after all that time is a hung server
            found = failure(node, "timeout", f"{found.message}, after {waited:.0f} s")
        raise NodeError((found,))

    def close(self) -> None:
        """End the connections to jump hosts."""
        for jump in self._jumps.values():
            with contextlib.suppress(OSError, EOFError):
                jump.close()

    # ------------------------------------------------------------ connecting

    def _open(self, node: Node) -> fabric.Connection:
        gateway = self._gateway(node)
        connection = self._connection(node.host, node.user, node.port, node.identity_file, gateway)
        self._verify_and_open(connection, node.host)
        return connection

    def _verify_and_open(self, connection: fabric.Connection, name: str) -> None:
        """Open with exactly the host keys that the known_hosts files have for this host."""
        client = connection.client
        client.set_missing_host_key_policy(_Reject())
        plain = connection.port == 22
        dialled = connection.host if plain else f"[{connection.host}]:{connection.port}"
        options = self._config.lookup(name)
        for known in self._known_hosts(options):
            entry = known.lookup(options.get("hostkeyalias", dialled))
            for kind, key in entry.items() if entry else ():
                client.get_host_keys().add(dialled, kind, key)
        connection.open()
        connection.transport.set_keepalive(KEEPALIVE)

    def _connection(
        self,
        host: str,
        user: str | None,
        port: int | None,
        identity: str | None,
        gateway: fabric.Connection | None,
    ) -> fabric.Connection:
        import fabric

        timeout = self._ssh.connect_timeout
        arguments: dict[str, Any] = {"banner_timeout": timeout, "auth_timeout": timeout}
        options = self._config.lookup(host)
        if identity is not None:
            arguments["key_filename"] = [str(Path(identity).expanduser())]
        # as ssh does it: a key that is named replaces the ones with standard names
        arguments["look_for_keys"] = identity is None and "identityfile" not in options
        with self._reading:  # Fabric's configuration is not made for several threads
            return fabric.Connection(
                host,
                user=user,
                port=port,
                config=fabric.Config(ssh_config=self._config, lazy=True),
                gateway=gateway,
                connect_timeout=timeout,
                connect_kwargs=arguments,
            )

    def _gateway(self, node: Node) -> fabric.Connection | None:
        """The connection to the node's jump host; what ~/.ssh/config says if the file does not."""
        jump = node.jump or self._config.lookup(node.host).get("proxyjump", "none")
        if jump == "none":
            return None
        with self._jumping:
            gateway = None
            for hop in jump.split(","):  # each hop is reached through the one before
                if hop not in self._jumps:
                    user, host, port = _parse_hop(hop)
                    self._jumps[hop] = self._connection(host, user, port, None, gateway)
                    try:
                        self._verify_and_open(self._jumps[hop], host)
                    except Exception as error:
                        del self._jumps[hop]
                        kind = from_error(node, error).kind
                        raise _JumpError(
                            failure(node, kind, f"jump host {hop}: {error}")
                        ) from error
                gateway = self._jumps[hop]
            return gateway

    # ------------------------------------------------------------ configuration

    @cached_property
    def _config(self) -> paramiko.SSHConfig:
        """The user's ssh_config and the system's; the first that names an option wins."""
        import paramiko

        # it logs what it also raises; without a handler that would land on the terminal
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        config = paramiko.SSHConfig()
        user = self._ssh.config_file or "~/.ssh/config"
        for path in (Path(user).expanduser(), Path("/etc/ssh/ssh_config")):
            if path.is_file():
                with path.open(encoding="utf-8") as file:
                    config.parse(file)
        return config

    def _known_hosts(self, options: dict[str, Any]) -> Iterator[paramiko.HostKeys]:
        """The user's and the system's known hosts; each file is read once."""
        import paramiko

        named = (
            options.get("userknownhostsfile", USER_KNOWN_HOSTS),
            options.get("globalknownhostsfile", GLOBAL_KNOWN_HOSTS),
        )
        for name in (word for text in named for word in shlex.split(text)):
            with self._reading:
                if name not in self._known:
                    self._known[name] = paramiko.HostKeys()
                    with contextlib.suppress(OSError):
                        self._known[name].load(str(Path(name).expanduser()))
            yield self._known[name]


class HostKeyUnknown(Exception):
    """No known_hosts file has a key for this host."""


class _JumpError(Exception):
    """A jump host could not be used; carries the failure in words."""

    def __init__(self, found: NodeFailure) -> None:
        super().__init__(found.message)
        self.failure = found


class _Reject:
    """What is done with an unknown host key: nothing is accepted silently."""

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        """Raise HostKeyUnknown with the key's fingerprint."""
        raise HostKeyUnknown(f"{key.get_name()} {key.fingerprint}")


def _parse_hop(hop: str) -> tuple[str | None, str, int | None]:
    user, at, rest = hop.rpartition("@")
    host, colon, port = rest.rpartition(":")
    if colon and port.isdigit():
        return (user if at else None), host, int(port)
    return (user if at else None), rest, None


def make(cluster: Cluster) -> FabricTransport:
    """The transport for a cluster."""
    return FabricTransport(cluster.ssh)
