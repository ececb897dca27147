"""The system's ssh client: the user's configuration, agent and policies hold as they are."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.errors import NodeError, ToolMissingError
from dslaunch.transport.classify import from_words
from dslaunch.transport.process import ProcessChannel, login_line
from dslaunch.transport.retry import when_throttled

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster, Node, Ssh


class OpenSshConnection:
    """A master connection; every program on the node goes through it."""

    def __init__(self, argv: list[str]) -> None:
        self._argv = argv

    def start(self, line: str) -> ProcessChannel:
        """Run a shell line on the node."""
        *options, host = self._argv
        return ProcessChannel([*options, "-o", "ControlMaster=no", host, login_line(line)])

    def close(self) -> None:
        """End the master."""
        *options, host = self._argv
        subprocess.run([*options, "-O", "exit", host], capture_output=True, check=False)


class OpenSshTransport:
    """Opens one master connection per node, with its socket in a private directory."""

    def __init__(self, ssh: Ssh) -> None:
        if shutil.which("ssh") is None:
            raise ToolMissingError("transport `openssh` needs the program ssh", hint="install it")
        self._ssh = ssh
        self._sockets = tempfile.TemporaryDirectory(prefix="dslaunch-ssh-")

    def connect(self, node: Node) -> OpenSshConnection:
        """Open the master connection. Raises NodeError."""
        return when_throttled(lambda: self._try(node))

    def _try(self, node: Node) -> OpenSshConnection:
        argv = ["ssh", *self._options(node), node.host]
        # not a pipe: a master keeps its standard error open, and reading would never end
        with tempfile.TemporaryFile() as words:
            done = subprocess.run(
                [argv[0], "-f", "-N", "-M", *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=words,
                start_new_session=True,
                check=False,
            )
            words.seek(0)
            said = words.read().decode(errors="replace")
        if done.returncode:
            raise NodeError((from_words(node, said),))
        return OpenSshConnection(argv)

    def close(self) -> None:
        """Remove the sockets' directory."""
        self._sockets.cleanup()

    def _options(self, node: Node) -> list[str]:
        """The client's options; what the cluster file leaves out is for ~/.ssh/config to say."""
        settings = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "ConnectTimeout": f"{max(1, round(self._ssh.connect_timeout))}",
            "ServerAliveInterval": "15",
            "ServerAliveCountMax": "3",
            "ForwardAgent": "no",
            "ForwardX11": "no",
            "ControlPath": str(Path(self._sockets.name) / "%C"),
        }
        options = ["-T", *(word for pair in settings.items() for word in ("-o", "=".join(pair)))]
        for flag, file in (("-F", self._ssh.config_file), ("-i", node.identity_file)):
            options += [flag, str(Path(file).expanduser())] if file else []
        for flag, value in (("-l", node.user), ("-p", node.port), ("-J", node.jump)):
            options += [flag, str(value)] if value is not None else []
        return options


def make(cluster: Cluster) -> OpenSshTransport:
    """The transport for a cluster."""
    return OpenSshTransport(cluster.ssh)
