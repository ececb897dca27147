"""Nodes emulated on this machine: each has its own directory as its home."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.errors import NodeError, NodeFailure
from dslaunch.node import private
from dslaunch.transport.base import TransportType
from dslaunch.transport.process import ProcessChannel, ProcessConnection, inherited

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster, Node

EMULATED = "emulated"
"""The directory of the emulated nodes in the state directory."""


class LocalConnection(ProcessConnection):
    """A node emulated by a directory."""

    def __init__(self, home: Path, environ: Mapping[str, str]) -> None:
        super().__init__()
        self._home, self._environ = home, environ

    def start(self, line: str, text: Sequence[bytes] = ()) -> ProcessChannel:
        """Run a shell line with the node's directory as home and working directory."""
        env = {**self._environ, "HOME": str(self._home)}
        argv = ["/bin/sh", "-c", line]
        return self.keep(ProcessChannel(argv, text=text, env=env, cwd=str(self._home)))


class LocalTransport:
    """Gives each node `<state>/emulated/<cluster>/<host>`."""

    def __init__(self, root: Path, environ: Mapping[str, str]) -> None:
        """`environ`: the environment of programs on the nodes."""
        self._root, self._environ = root, environ

    def connect(self, node: Node) -> LocalConnection:
        """Create the node's directory if it is new. Raises NodeError."""
        home = self._root / node.host
        try:
            private.make_directory(str(home))
        except OSError as error:
            why = f"cannot create its directory {home}: {error.strerror}"
            hint = "set $DSLAUNCH_STATE to a directory that you own"
            raise NodeError((NodeFailure(node.host, "protocol", why, hint),)) from None
        return LocalConnection(home, self._environ)

    def close(self) -> None:
        """Nothing is held."""


def make(cluster: Cluster) -> LocalTransport:
    """Return the emulated nodes of a cluster, below `$DSLAUNCH_STATE` or the XDG directory."""
    state = os.environ.get("DSLAUNCH_STATE")
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    root = Path(state) if state else Path(base).expanduser() / "dslaunch"
    directory = (root / EMULATED / cluster.name).absolute()
    return LocalTransport(directory, inherited(os.environ, cluster))


TRANSPORT = TransportType(
    make,
    summary="this machine, with a directory for each node",
    same_machine=True,
)
