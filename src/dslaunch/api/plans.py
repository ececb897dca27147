"""What a run would do, without asking a node: as a plan, and as texts for other launchers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dslaunch.api.arguments import PathText, directory
from dslaunch.api.nodes import select
from dslaunch.api.starts import run_request
from dslaunch.cluster.names import address_fault
from dslaunch.errors import UsageError
from dslaunch.registry import plugin_faults

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation, Cluster
    from dslaunch.launch.job import Job
    from dslaunch.launch.plan import Decided, Plan
    from dslaunch.render.launch import Rendered
    from dslaunch.run.request import RunRequest


@plugin_faults()
def plan(
    cluster: Cluster,
    job: Job,
    allocation: Allocation | None = None,
    *,
    cwd: PathText | None = None,
    restarts: int | None = None,
    min_nodes: int | None = None,
) -> Plan:
    """Return what a run would do on every node. No node is asked: decisions are marked as assumed.

    Raises SelectionError, PlanError, UsageError.
    """
    request = run_request(cluster, job, allocation, cwd=cwd, restarts=restarts, min_nodes=min_nodes)
    return assumed_plan(request)


def assumed_plan(request: RunRequest) -> Plan:
    """Return the plan of a request, made from assumptions. Raises PlanError."""
    from dslaunch.launch.assume import assume
    from dslaunch.launch.planner import make_plan
    from dslaunch.run.request import job_of_attempt

    decided = assume(request.cluster, request.allocation, str(request.cwd))
    job = job_of_attempt(request, 0)
    return make_plan(request.allocation, job, decided, cluster=request.cluster.name)


@plugin_faults()
def render(
    name: str,
    cluster: Cluster,
    job: Job,
    allocation: Allocation | None = None,
    *,
    master_addr: str | None = None,
    master_port: int | None = None,
    cwd: PathText | None = None,
) -> Rendered:
    """Return a text of this format for another launcher, such as `hostfile` or `torchrun`.

    No node is asked; `decisions` of the result are what the text assumes.
    Raises SelectionError, PlanError, UsageError.
    """
    from dslaunch.render import formats
    from dslaunch.render.launch import Launch
    from dslaunch.run.job_program import located

    where = directory(cwd)
    allocation = allocation or select(cluster)
    decided = _assumed(cluster, allocation, master_addr, master_port, where)
    launch = Launch(cluster.name, allocation, located(job, where), decided)
    return formats.render(name, launch)


def _assumed(
    cluster: Cluster,
    allocation: Allocation,
    address: str | None,
    port: int | None,
    cwd: Path,
) -> Decided:
    """Return what is assumed of the nodes, except the address and port given for the master.

    Raises UsageError for an invalid address.
    """
    from dslaunch.launch.assume import assume
    from dslaunch.launch.decisions import MASTER_ASSUMED, DecisionCode, decision

    fault = address_fault(address) if address is not None else None
    if fault is not None:
        raise UsageError(f"--master-addr: {fault}")
    network = replace(cluster.network, master_port=port or cluster.network.master_port)
    decided = assume(replace(cluster, network=network), allocation, str(cwd))
    if address is None:
        return decided
    given = decision(DecisionCode.MASTER_GIVEN, address=address, port=decided.rendezvous.port)
    decisions = (given if each.code in MASTER_ASSUMED else each for each in decided.decisions)
    rendezvous = replace(decided.rendezvous, address=address)
    return replace(decided, rendezvous=rendezvous, decisions=tuple(decisions))
