"""The hardware of the nodes of a training, from a cluster file and recorded answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.cluster.select import select
from dslaunch.deepspeed.hardware import NodeHardware, hardware_of

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation, Cluster
    from dslaunch.preflight.recording import Recording


class Hardware(Struct, frozen=True):
    """The known hardware of the nodes of a training."""

    nodes: tuple[NodeHardware, ...] = ()
    ranks: int | None = None
    network: float | None = None
    """Measured bytes per second between nodes."""
    nvme: int | None = None
    """Smallest number of free bytes on the local disks of the nodes."""
    unanswered: tuple[str, ...] = ()
    """Nodes without a recorded answer, although other nodes have one."""

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        allocation: Allocation | None = None,
        facts: Recording | None = None,
    ) -> Hardware:
        """Return the hardware of the nodes from the cluster file and the facts of a preflight.

        Without an allocation, all nodes except spare nodes count. Raises SelectionError.
        """
        allocation = allocation or select(cluster)
        if facts is None:
            return cls(hardware_of(allocation), allocation.world_size)
        # heavy: 44 ms, only with the facts of a preflight
        from dslaunch.preflight.hardware import hardware, network, node_local

        return cls(
            nodes=hardware(allocation, facts),
            ranks=allocation.world_size,
            network=network(facts),
            nvme=node_local(facts),
            unanswered=tuple(host for host in allocation.hosts if host not in facts.nodes),
        )
