"""Plain sshd on loopback addresses, as the calling user: for machines without namespaces.

All "nodes" share this machine's files, network and processes, so nothing can be broken here; what
needs only real SSH is tested all the same.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.ports import free_port

START_TIMEOUT = 60.0


def missing() -> str | None:
    """Why there can be none; None if there can."""
    for program in ("sshd", "ssh-keygen", "ssh"):
        if find(program) is None:
            return f"needs {program}: apt-get install openssh-server openssh-client"
    return None


def find(program: str) -> str | None:
    """Where a program is, also one that is only on root's PATH."""
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


class Loopback:
    """`count` sshd servers, each on an address of its own; inside `with` they run."""

    def __init__(self, count: int, directory: Path) -> None:
        self.directory = directory
        self.names = tuple(f"node{i + 1}" for i in range(count))
        self.config = directory / "ssh_config"
        self._servers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        for name in ("host", "user"):
            self._keygen(name)
        (self.directory / "authorized").write_text((self.directory / "user.pub").read_text())
        ports = {name: self._serve(index) for index, name in enumerate(self.names)}
        self._write_client_files(ports)
        for index, port in enumerate(ports.values()):
            wait_for_port(address(index), port)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers:
            server.terminate()
            server.wait(10)

    def _keygen(self, name: str) -> None:
        path = self.directory / name
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)

    def _serve(self, index: int) -> int:
        port = free_port(address(index))
        config = self.directory / f"sshd{index}"
        config.write_text(
            f"ListenAddress {address(index)}:{port}\nHostKey {self.directory}/host\n"
            f"AuthorizedKeysFile {self.directory}/authorized\nPidFile none\nUsePAM no\n"
            "StrictModes no\nPasswordAuthentication no\n"
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where root's sshd drops its privileges
        command = [str(find("sshd")), "-D", "-e", "-f", str(config)]
        self._servers.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        return port

    def _write_client_files(self, ports: dict[str, int]) -> None:
        key = (self.directory / "host.pub").read_text().rsplit(maxsplit=1)[0]
        known, hosts = "", ""
        for index, (name, port) in enumerate(ports.items()):
            known += f"[{address(index)}]:{port} {key}\n"
            hosts += f"Host {name}\n  HostName {address(index)}\n  Port {port}\n"
        (self.directory / "known_hosts").write_text(known)
        self.config.write_text(
            f"{hosts}Host *\n  User {getpass.getuser()}\n  IdentityFile {self.directory}/user\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {self.directory}/known_hosts\n"
        )


def address(index: int) -> str:
    """A node's own loopback address."""
    return f"127.0.1.{index + 1}"


def wait_for_port(host: str, port: int) -> None:
    """Wait until a server answers there. Raises OSError."""
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
