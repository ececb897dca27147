"""How a node is reached. The only place that opens connections.

`choose` decides between the two that speak SSH. `registry.TRANSPORTS` has a `TransportType` by
name, which states what a transport can do and makes it for a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.registry import TRANSPORTS
from dslaunch.transport.logged import LoggedTransport

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster
    from dslaunch.transport.base import Transport
    from dslaunch.transport.ssh.choice import Choice


def get(name: str, cluster: Cluster) -> Transport:
    """Give the transport of that name for a cluster; for `auto` the one that fits.

    Raises UsageError when there is none, PlanError and ToolMissingError as `choose` does.
    """
    return make(choose(name, cluster).name, cluster)


def choose(name: str, cluster: Cluster) -> Choice:
    """Return which transport is to be used, and why; see `ssh.choice.choose`."""
    from dslaunch.transport.ssh import choice

    return choice.choose(name, cluster)


def make(name: str, cluster: Cluster) -> Transport:
    """Give the transport that is chosen. Raises UsageError when none has that name."""
    return LoggedTransport(name, TRANSPORTS.get(name).make(cluster))
