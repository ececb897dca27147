"""Nodes emulated on this machine: each has a directory of its own as its home."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.errors import NodeError, NodeFailure
from dslaunch.transport.process import ProcessChannel

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster, Node


class LocalConnection:
    """A node that is a directory."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def start(self, line: str) -> ProcessChannel:
        """Run a shell line with the node's directory as home and working directory."""
        env = os.environ | {"HOME": str(self._home)}
        return ProcessChannel(["/bin/sh", "-c", line], env=env, cwd=str(self._home))

    def close(self) -> None:
        """Nothing is held."""


class LocalTransport:
    """Gives each node `<state>/emulated/<cluster>/<host>`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def connect(self, node: Node) -> LocalConnection:
        """Make the node's directory if it is new."""
        home = self._root / node.host
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = f"its directory {home} cannot be made: {error.strerror}"
            hint = "set $DSLAUNCH_STATE to a directory of yours"
            raise NodeError((NodeFailure(node.host, "protocol", why, hint),)) from None
        return LocalConnection(home)

    def close(self) -> None:
        """Nothing is held."""


def make(cluster: Cluster) -> LocalTransport:
    """The emulated nodes of a cluster, below `$DSLAUNCH_STATE` or as XDG says."""
    state = os.environ.get("DSLAUNCH_STATE")
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    root = Path(state) if state else Path(base).expanduser() / "dslaunch"
    return LocalTransport((root / "emulated" / cluster.name).absolute())
