"""Transports: how a node is reached. The only package that opens connections.

`choose` decides between the two SSH transports. `registry.TRANSPORTS` has a `TransportType` by
name, which states the capabilities of a transport and creates it for a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dslaunch.registry import TRANSPORTS
from dslaunch.transport.checked import CheckedTransport
from dslaunch.transport.logged import LoggedTransport

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster, Node
    from dslaunch.transport.base import Transport
    from dslaunch.transport.ssh.choice import Choice


def get(name: str, cluster: Cluster, nodes: Sequence[Node] | None = None) -> Transport:
    """Return the transport of that name for nodes of a cluster; for `auto` the suitable one.

    Raises UsageError for an unknown name, PlanError and ToolMissingError as `choose` does.
    """
    return make(choose(name, cluster).name, cluster, nodes)


def choose(name: str, cluster: Cluster) -> Choice:
    """Return which transport to use, and why; see `ssh.choice.choose`."""
    from dslaunch.transport.ssh import choice

    return choice.choose(name, cluster)


def make(name: str, cluster: Cluster, nodes: Sequence[Node] | None = None) -> LoggedTransport:
    """Return the transport of that name. Raises UsageError for an unknown one.

    `nodes`: those that will be connected to; None: all of the cluster. No other node carries
    anything of theirs.
    """
    chosen = cluster if nodes is None else replace(cluster, nodes=tuple(nodes))
    made = TRANSPORTS.get(name).make(chosen)
    if name not in TRANSPORTS.names():
        made = CheckedTransport(name, made)
    return LoggedTransport(name, made)


def import_client(name: str) -> None:
    """Import what the connections of a transport need, while they are being made.

    To be called before other work that needs the processor: each login waits for the import.
    """
    client = TRANSPORTS.get(name).client
    if client:
        import_module(client)
