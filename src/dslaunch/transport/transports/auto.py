"""The transport that the user's SSH configuration needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.registry import TRANSPORTS
from dslaunch.transport.base import TransportType

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster
    from dslaunch.transport.base import Transport


def make(cluster: Cluster) -> Transport:
    """Return the suitable transport. Raises ToolMissingError as `choose` does."""
    from dslaunch.transport.ssh.choice import AUTO, choose

    return TRANSPORTS.get(choose(AUTO, cluster).name).make(cluster)


TRANSPORT = TransportType(
    make,
    summary="`fabric`, or `openssh` if the SSH configuration needs it",
    over_ssh=True,
)
