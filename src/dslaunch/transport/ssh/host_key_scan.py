"""Ask SSH servers for their host keys, without logging in to them.

Jump hosts are logged in to, by the system's ssh and with strict options: their keys
must be recorded already.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from dslaunch.errors import NodeError, NodeFailure, UsageError
from dslaunch.transport.classify import Scene, Symptom, failure, symptom_in, symptom_of
from dslaunch.transport.process import end_process
from dslaunch.transport.retry import when_throttled
from dslaunch.transport.ssh import strict
from dslaunch.transport.ssh.known_hosts import type_name
from dslaunch.transport.ssh.route import Hop, expand, parse_hop
from dslaunch.transport.ssh.temporary import temporary_parents
from dslaunch.transport.ssh.trust import PublicKey, SshServer

if TYPE_CHECKING:
    from dslaunch.cluster.model import Ssh

KINDS = ("ED25519", "ECDSA", "RSA")
"""The kinds of keys that are asked for, the one that ssh prefers first."""
ENDING = 2.0
"""Seconds until a jump that is asked to end is killed."""


class Gatherer:
    """Asks servers for their keys; within `with` it has a configuration for jump hosts."""

    def __init__(self, ssh: Ssh) -> None:
        # what Paramiko logs it raises too; without a handler that lands on the terminal
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        self._ssh = ssh
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Gatherer:
        parent = next(temporary_parents(), None)
        if parent is None:
            raise UsageError(
                "no directory for temporary files",
                hint="set $TMPDIR to a directory that you own and in which no other user can write",
            )
        directory = tempfile.TemporaryDirectory(prefix="dslaunch-trust-", dir=parent)
        place = self._stack.enter_context(directory)
        self._config = Path(place) / "config"
        wait = str(max(1, round(self._ssh.connect_timeout)))
        strictly = strict.configuration(self._ssh.config_file, {"ConnectTimeout": wait})
        self._config.touch(mode=0o600)
        self._config.write_bytes(os.fsencode(strictly.text))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def keys(self, host: SshServer, kinds: Sequence[str], *, every: bool) -> tuple[PublicKey, ...]:
        """Return the keys of these kinds that a server presents: all, or the first that it has.

        Raises NodeError.
        """
        found = []
        for kind in kinds:
            key = when_throttled(lambda kind=kind: self._key(host, kind))  # type: ignore[misc]
            if key is not None:
                found.append(key)
                if not every:
                    break
        return tuple(found)

    def is_certified(self, host: SshServer) -> bool:
        """Return whether ssh itself accepts the server's key by a certificate authority.

        No login: ssh gets no authentication method to try after it has verified the key.
        """
        if shutil.which("ssh") is None:
            return False
        hop = host.hop
        argv = ["ssh", "-F", str(self._config), "-T", "-o", "PreferredAuthentications=none"]
        argv += ["-l", hop.user, "-p", str(hop.port)]
        if host.is_jump is False and host.node.jump:
            argv += ["-J", host.node.jump]
        limit = self._ssh.connect_timeout * (len(host.before) + 2) + ENDING
        try:
            done = subprocess.run(
                [*argv, "--", hop.alias, "true"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        if done.returncode == 0:
            return True
        return symptom_in(done.stderr.decode(errors="replace")).kind == "authentication"

    def is_revoked(self, host: SshServer, key: PublicKey) -> bool:
        """Return whether the list of RevokedHostKeys has a key, or cannot be read: then ssh
        refuses every host (ssh_config(5))."""
        named = host.hop.options.first("revokedhostkeys")
        if named is None or named == "none":
            return False
        with tempfile.NamedTemporaryFile("w", dir=self._config.parent, suffix=".pub") as file:
            file.write(f"{key.key_type} {base64.b64encode(key.blob).decode()}\n")
            file.flush()
            argv = ["ssh-keygen", "-Q", "-f", str(Path(named).expanduser()), file.name]
            try:
                done = subprocess.run(argv, capture_output=True, timeout=10, check=False)
            except (OSError, subprocess.TimeoutExpired):
                return True
        return done.returncode != 0

    def _key(self, host: SshServer, kind: str) -> PublicKey | None:
        """Return the key of one kind; None: the server has none. Raises NodeError."""
        import paramiko

        with tempfile.TemporaryFile() as words:
            try:
                with self._connected(host.hop, words) as connection:
                    return _presented(connection, kind, self._ssh.connect_timeout)
            except paramiko.ssh_exception.IncompatiblePeer as error:
                if "host key" not in str(error).lower():
                    raise NodeError((self._failure(host, symptom_of(error)),)) from error
                return None
            except (paramiko.SSHException, OSError, EOFError) as error:
                words.seek(0)
                said = words.read().decode(errors="replace").strip()
                symptom = symptom_in(said) if said else symptom_of(error)
                raise NodeError((self._failure(host, symptom),)) from error

    def _failure(self, host: SshServer, symptom: Symptom) -> NodeFailure:
        scene = Scene(
            node=host.node,
            hop=host.hop,
            config_file=self._ssh.config_file,
            timeout=self._ssh.connect_timeout,
        )
        return failure(scene, symptom)

    @contextlib.contextmanager
    def _connected(self, hop: Hop, words: IO[bytes]) -> Iterator[socket.socket]:
        """Connect to a server: directly, through its jump hosts, or by its ProxyCommand."""
        argv = self._through(hop)
        if argv is None:
            address = (hop.host, hop.port)
            with socket.create_connection(address, self._ssh.connect_timeout) as direct:
                yield direct
            return
        if shutil.which(argv[0]) is None:
            raise OSError(f"{argv[0]} not found")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = subprocess.Popen(
                argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=words, process_group=0
            )
            theirs.close()
            try:
                yield ours
            finally:
                end_process(process, ENDING)

    def _through(self, hop: Hop) -> list[str] | None:
        """Return the program whose standard streams connect to a server; None: not needed."""
        if hop.proxy_command is not None:
            tokens = {"h": hop.host, "n": hop.alias, "p": str(hop.port), "r": hop.user}
            return ["/bin/sh", "-c", f"exec {expand(hop.proxy_command, tokens, {})}"]
        if hop.jump is None:
            return None
        before, _, last = hop.jump.rpartition(",")
        via = parse_hop(last)
        argv = ["ssh", "-F", str(self._config), "-W", f"[{hop.host}]:{hop.port}"]
        for flag, value in (("-J", before), ("-l", via.user), ("-p", via.port)):
            argv += [flag, str(value)] if value else []
        return [*argv, "--", via.alias]


def _presented(connection: socket.socket, kind: str, timeout: float) -> PublicKey:
    """Exchange keys with a server, asking for a host key of one kind. Raises SSHException."""
    import paramiko

    transport = paramiko.Transport(connection)
    try:
        transport.banner_timeout = timeout
        security = transport.get_security_options()
        wanted = [name for name in security.key_types if _kind_of(name) == kind]
        security.key_types = wanted
        transport.start_client(timeout=timeout)
        key = transport.get_remote_server_key()
        return PublicKey(key.get_name(), key.asbytes())
    finally:
        transport.close()


def _kind_of(algorithm: str) -> str:
    """Return the kind of key behind a signature's name: RSA for `rsa-sha2-512`."""
    return "RSA" if algorithm.startswith("rsa-") else type_name(algorithm)
