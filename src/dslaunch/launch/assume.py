"""Assumptions about nodes that were not queried: enough to render a plan, not to run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.cluster.names import is_loopback
from dslaunch.launch.decisions import DecisionCode, decision
from dslaunch.launch.plan import Decided, Rendezvous

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation, Cluster

DEFAULT_PORT = 29500
"""Default port of torch, DeepSpeed and accelerate."""


def assume(cluster: Cluster, allocation: Allocation, cwd: str) -> Decided:
    """Decide from the cluster file alone; every decision is marked as assumed.

    `cwd` is the working directory of the job if `storage.workdir` is not set.
    """
    code, address = _address(cluster, allocation)
    given = cluster.network.master_port
    port = DEFAULT_PORT if given is None else given
    first, *others = allocation.hosts
    interface = cluster.network.interface
    hosts = allocation.hosts if interface else ()
    workdir = cluster.storage.workdir
    decisions = [
        decision(
            code,
            assumed=True,
            address=address,
            port=port,
            host=first,
            means_itself=bool(others) and not cluster.same_machine and is_loopback(address),
            port_origin="default" if given is None else "file",
        )
    ]
    if interface:
        decisions.append(decision(DecisionCode.INTERFACE_GIVEN, assumed=True, interface=interface))
    where = DecisionCode.WORKDIR_HERE if workdir is None else DecisionCode.WORKDIR_GIVEN
    decisions.append(decision(where, assumed=True, path=workdir or cwd))
    return Decided(
        Rendezvous(address, port, tuple((host, interface or "") for host in hosts)),
        workdir or cwd,
        tuple(decisions),
    )


def _address(cluster: Cluster, allocation: Allocation) -> tuple[DecisionCode, str]:
    first = allocation.placements[0].node
    if first.address is not None:
        return DecisionCode.MASTER_BY_ADDRESS, first.address
    if cluster.same_machine:
        return DecisionCode.MASTER_LOCAL, "127.0.0.1"
    return DecisionCode.MASTER_BY_NAME, first.host
