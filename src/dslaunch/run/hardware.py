"""The nodes that a training will run on: by a cluster file, and by what they answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dslaunch.cluster.select import select
from dslaunch.deepspeed.hardware import NodeHardware, hardware_of

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation, Cluster
    from dslaunch.preflight.recording import Recording


@dataclass(frozen=True, slots=True)
class Hardware:
    """The nodes of a training, as far as they are known."""

    nodes: tuple[NodeHardware, ...] = ()
    ranks: int | None = None
    network: float | None = None
    """Bytes per second between nodes, as measured."""
    nvme: int | None = None
    """Bytes free on the nodes' own disks, of the node with least."""
    unanswered: tuple[str, ...] = ()
    """Nodes of which only the cluster file is known, though nodes were asked."""

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        allocation: Allocation | None = None,
        facts: Recording | None = None,
    ) -> Hardware:
        """Return what the cluster file says of the nodes, and what they answered in a preflight.

        Without an allocation all nodes that are no spares count. Raises SelectionError.
        """
        allocation = allocation or select(cluster)
        if facts is None:
            return cls(hardware_of(allocation), allocation.world_size)
        from dslaunch.preflight.hardware import hardware, network, node_local

        return cls(
            nodes=hardware(allocation, facts),
            ranks=allocation.world_size,
            network=network(facts),
            nvme=node_local(facts),
            unanswered=tuple(host for host in allocation.hosts if host not in facts.nodes),
        )
