"""What a plan assumes of nodes that nobody has asked: enough to render, not to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.cluster.names import is_loopback
from dslaunch.launch.plan import Decided, Decision, Rendezvous

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation, Cluster

DEFAULT_PORT = 29500
"""The port that torch, DeepSpeed and accelerate take when none is named."""


def assume(cluster: Cluster, allocation: Allocation, cwd: str) -> Decided:
    """Decide by the cluster file alone; every decision is marked as assumed.

    `cwd` is where the job runs if the file names no `storage.workdir`.
    """
    address, why_address = _address(cluster, allocation)
    given = cluster.network.master_port
    port, why_port = (DEFAULT_PORT, "default port") if given is None else (given, "port given")
    interface = cluster.network.interface
    hosts = allocation.hosts if interface else ()
    workdir = cluster.storage.workdir
    decisions = [Decision("master", f"{address}:{port}", f"{why_address}; {why_port}", True)]
    if interface:
        decisions.append(Decision("interface", interface, "given for all nodes", True))
    why_workdir = "where dslaunch was called" if workdir is None else "given for all nodes"
    decisions.append(Decision("workdir", workdir or cwd, why_workdir, True))
    return Decided(
        Rendezvous(address, port, tuple((host, interface or "") for host in hosts)),
        workdir or cwd,
        tuple(decisions),
    )


def _address(cluster: Cluster, allocation: Allocation) -> tuple[str, str]:
    first, *others = (placement.node for placement in allocation.placements)
    if first.address is None and cluster.transport == "local":
        return "127.0.0.1", "all nodes are this machine"
    address = first.address or first.host
    why = f"address of {first.host}, the first node" if first.address else "name of the first node"
    if others and cluster.transport != "local" and is_loopback(address):
        why += ", but each machine means itself by it: name the node's `address:`"
    return address, why
