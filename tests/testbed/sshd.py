"""Real sshd on loopback addresses, each with host keys of its own, for tests of host keys.

In contrast to `loopback`, servers differ: each has its own keys, certificates and options, and a
test writes the client's configuration and known_hosts files itself.
"""

from __future__ import annotations

import getpass
import os
import subprocess
import textwrap
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.ports import free_port
from tests.testbed.loopback import find, wait_for_port

QUICK = "curve25519-sha256,curve25519-sha256@libssh.org"
"""A key exchange that takes a client 10 ms; OpenSSH 9.2's usual one takes 80."""


@dataclass(frozen=True)
class Server:
    """One sshd."""

    name: str
    address: str
    port: int
    directory: Path

    def key(self, kind: str = "ed25519") -> str:
        """A public host key as known_hosts files have it: type and base64."""
        return public(self.directory / f"host_{kind}")

    @property
    def known_as(self) -> str:
        """Its name in known_hosts files."""
        return f"[{self.address}]:{self.port}"


class Servers:
    """Starts sshd servers and writes what a client needs for them; inside `with` they run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.known_hosts = directory / "known_hosts"
        self.config = directory / "ssh_config"
        self.servers: dict[str, Server] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        keygen("-f", str(self.directory / "user"))
        text = (self.directory / "user.pub").read_text()
        (self.directory / "authorized").write_text(text)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(
        self,
        name: str,
        *,
        options: str = "",
        kinds: tuple[str, ...] = ("ed25519",),
        authority: str | None = None,
    ) -> Server:
        """Start a server with one host key of each kind and further options; with an authority,
        the first key has a certificate of it."""
        directory = self.directory / name
        directory.mkdir()
        for kind in kinds:
            keygen("-t", kind, "-f", str(directory / f"host_{kind}"))
        address = f"127.0.2.{len(self.servers) + 1}"
        server = Server(name, address, free_port(address), directory)
        self.servers[name] = server
        keys = "".join(f"HostKey {directory}/host_{kind}\n" for kind in kinds)
        if authority is not None:
            self._sign(authority, server, kinds[0])
            keys += f"HostCertificate {directory}/host_{kinds[0]}-cert.pub\n"
        (directory / "sshd_config").write_text(
            f"{options}ListenAddress {address}:{server.port}\n{keys}"
            f"AuthorizedKeysFile {self.directory}/authorized\nPidFile none\nUsePAM no\n"
            f"StrictModes no\nPasswordAuthentication no\nKexAlgorithms {QUICK}\n"
            # of several lines the last one counts (OpenSSH 9.2)
            f"{'' if 'MaxStartups' in options else 'MaxStartups 100'}\n"
        )
        command = [str(find("sshd")), "-D", "-E", str(directory / "log"), "-f"]
        process = subprocess.Popen([*command, str(directory / "sshd_config")])
        self._stack.callback(process.wait, 10)
        self._stack.callback(process.terminate)
        wait_for_port(address, server.port)
        return server

    def ssh_connects(self, host: str = "node") -> bool:
        """Return whether `ssh` itself connects, with the keys that are known now."""
        strict = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
        command = ["ssh", "-F", str(self.config), *strict, host, "true"]
        done = subprocess.run(command, capture_output=True, timeout=300, check=False)
        return done.returncode == 0

    def configure(self, blocks: str = "", everyone: str = "") -> Path:
        """Write the client's configuration: a test's own blocks, then where each server is."""
        hosts = "".join(
            f"Host {s.name}\n  HostName {s.address}\n  Port {s.port}\n"
            for s in self.servers.values()
        )
        self.config.write_text(
            f"{textwrap.dedent(blocks)}\n{hosts}Host *\n  User {getpass.getuser()}\n"
            f"  IdentityFile {self.directory}/user\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
            f"{textwrap.dedent(everyone)}"
        )
        return self.config

    def know(self, *lines: str) -> None:
        """Write the known_hosts file."""
        self.known_hosts.write_text("".join(f"{line}\n" for line in lines))

    def know_all(self, *, but: str = "") -> None:
        """Write a known_hosts file with the keys of all servers but one."""
        self.know(*(f"{s.known_as} {s.key()}" for s in self.servers.values() if s.name != but))

    def _sign(self, authority: str, server: Server, kind: str) -> None:
        ca, key = self.directory / authority, server.directory / f"host_{kind}.pub"
        if not ca.exists():
            keygen("-f", str(ca))
        command = ["ssh-keygen", "-q", "-s", str(ca), "-I", server.name, "-h"]
        subprocess.run([*command, "-n", server.address, str(key)], check=True)


def keygen(*words: str) -> None:
    """Make a key without a passphrase."""
    command = ["ssh-keygen", "-q", "-N", "", *words]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def public(path: Path) -> str:
    """The type and the base64 of a public key."""
    kind, key = path.with_name(f"{path.name}.pub").read_text().split()[:2]
    return f"{kind} {key}"
