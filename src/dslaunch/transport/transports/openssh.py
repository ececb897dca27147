"""The system's ssh client: the user's configuration, agent and policies hold as they are.

Each node has a master connection, a child process of ours. They and their clients are in one
process group with a watcher, which ends the group when the pipe from us closes: at the latest when
we die.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from dslaunch.errors import NodeError, ToolMissingError
from dslaunch.transport.base import TransportType
from dslaunch.transport.classify import Scene, Symptom, failure, hop_of, symptom_in
from dslaunch.transport.process import (
    ProcessChannel,
    ProcessConnection,
    end_process,
    login_line,
)
from dslaunch.transport.retry import when_throttled
from dslaunch.transport.ssh import strict
from dslaunch.transport.ssh.files import KnownHosts, client_of
from dslaunch.transport.ssh.route import Hop, RouteError, route
from dslaunch.transport.ssh.scene import scene_at
from dslaunch.transport.ssh.temporary import temporary_parents

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster, Node, Ssh

LONGEST_SOCKET = 80
"""Bytes of a socket's path. Linux allows 107; ssh appends up to 18 while it makes the socket."""
PLAIN_PATH = re.compile(r"[A-Za-z0-9_@+,./-]+")
"""A path without tokens, variables and quotes."""
WATCH = """trap '' HUP INT TERM
cat >/dev/null
rm -rf -- "$1"
trap - TERM
kill -TERM 0
"""
"""Waits for the end of its input, then ends its process group."""
AUTHENTICATION = 60.0
"""Seconds for the login, in addition to `ssh.connect_timeout`."""
POLL = 0.2
"""Seconds between two checks whether the socket exists."""
MOST_MESSAGES = 64 * 1024
"""Bytes of an ssh client's messages that are read."""
ENDING = 3.0
"""Seconds between TERM and KILL of a master."""


class OpenSshConnection(ProcessConnection):
    """A master connection, which all programs on the node share."""

    def __init__(self, argv: list[str], master: subprocess.Popen[bytes], group: int) -> None:
        super().__init__()
        self._argv, self._master, self._group = argv, master, group

    def start(self, line: str, text: Sequence[bytes] = ()) -> ProcessChannel:
        """Run a shell line on the node."""
        *options, host = self._argv
        words = [*options, "-o", "ControlMaster=no", host, login_line(line)]
        return self.keep(ProcessChannel(words, text=text, group=self._group))

    def close(self) -> None:
        """Close the master connection, and with it all programs."""
        end_process(self._master, ENDING)
        super().close()


class OpenSshTransport:
    """Opens one master connection per node, with its socket in a private directory."""

    def __init__(self, ssh: Ssh) -> None:
        if shutil.which("ssh") is None:
            raise ToolMissingError(
                "transport `openssh`: ssh not found", hint="install the OpenSSH client"
            )
        self._ssh = ssh
        self._client = client_of(ssh)
        self._known = KnownHosts()
        settings = {
            "ConnectTimeout": str(max(1, round(ssh.connect_timeout))),
            "ServerAliveInterval": "15",
            "ServerAliveCountMax": "3",
        }
        self._strictly = strict.configuration(ssh.config_file, settings)
        self._directory = _private_directory()
        self._config = self._directory / "config"
        self._config.touch(mode=0o600)
        self._config.write_bytes(os.fsencode(self._strictly.text))
        self._numbers = itertools.count(1)
        self._masters: list[subprocess.Popen[bytes]] = []
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", WATCH, "sh", str(self._directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    def connect(self, node: Node) -> OpenSshConnection:
        """Open the master connection. Raises NodeError."""
        try:
            hops = route(self._client, node)  # in a loop of jump hosts ssh starts itself forever
        except RouteError as error:
            found = failure(Scene(node), Symptom("route", str(error)))
            raise NodeError((found,)) from error
        return when_throttled(lambda: self._try(node, hops))

    def _try(self, node: Node, hops: tuple[Hop, ...]) -> OpenSshConnection:
        socket = self._directory / f"{next(self._numbers)}"
        argv = ["ssh", *self._options(node), "-o", f"ControlPath={socket}", node.host]
        # ssh runs the local command once it has logged in and its socket is there
        ready = ["-o", "PermitLocalCommand=yes", "-o", "LocalCommand=echo"]
        # not a pipe: a master keeps its standard error open, and reading would never end
        with tempfile.TemporaryFile() as words:
            try:
                master = self._start([argv[0], "-N", "-M", *ready, *argv[1:]], words)
            except OSError as error:
                found = failure(Scene(node), Symptom("protocol", str(error)))
                raise NodeError((found,)) from error
            try:
                if _is_ready(master, socket, self._ssh.connect_timeout + AUTHENTICATION):
                    return OpenSshConnection(argv, master, self._watcher.pid)
                symptom = None
            except TimeoutError as error:
                symptom = Symptom("timeout", str(error))
            end_process(master, ENDING)
            words.seek(0)
            said = words.read(MOST_MESSAGES).decode(errors="replace")
        symptom = symptom or symptom_in(self._strictly.with_own_places(said, self._config))
        hop = hop_of(symptom, hops)
        scene = scene_at(hop, node=node, ssh=self._ssh, client=self._client, known=self._known)
        raise NodeError((failure(scene, symptom),))

    def _start(self, argv: list[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a master in the watcher's process group."""
        master = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            process_group=self._watcher.pid,
        )
        self._masters.append(master)
        return master

    def close(self) -> None:
        """Close all master connections, and remove their sockets."""
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        self._watcher.wait()
        for master in self._masters:
            end_process(master, ENDING)

    def _options(self, node: Node) -> list[str]:
        """Return the client's options. For all others, ~/.ssh/config applies."""
        options = ["-T", "-F", str(self._config)]
        if node.identity_file:
            options += ["-i", str(Path(node.identity_file).expanduser())]
        for flag, value in (("-l", node.user), ("-p", node.port), ("-J", node.jump)):
            options += [flag, str(value)] if value is not None else []
        return options


def _is_ready(master: subprocess.Popen[bytes], socket: Path, timeout: float) -> bool:
    """Wait until the master has logged in; return False if it gave up. Raises TimeoutError."""
    assert master.stdout is not None
    deadline = time.monotonic() + timeout
    with master.stdout as output:
        while time.monotonic() < deadline:
            readable, _, _ = select.select([output], [], [], POLL)
            if readable:
                # a login shell that is not a shell prints nothing
                return bool(output.read(1)) or socket.exists()
            if socket.exists():
                return True
    raise TimeoutError("logging in")


def _private_directory() -> Path:
    """Return a new private directory whose path ssh takes unchanged for a socket."""
    for parent in temporary_parents():
        with contextlib.suppress(OSError):
            directory = Path(tempfile.mkdtemp(prefix="dslaunch-ssh-", dir=parent))
            if PLAIN_PATH.fullmatch(str(directory)) and len(str(directory)) <= LONGEST_SOCKET:
                return directory
            directory.rmdir()
    raise ToolMissingError(
        "transport `openssh` needs a temporary directory with a short and plain path",
        hint="set $TMPDIR to a directory that you own and in which no other user can write",
    )


def make(cluster: Cluster) -> OpenSshTransport:
    """Return the transport for a cluster."""
    return OpenSshTransport(cluster.ssh)


TRANSPORT = TransportType(
    make,
    summary="the system's ssh",
    over_ssh=True,
    ssh_program=True,
)
