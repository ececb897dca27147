"""Make the plan from an allocation, a job and decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from dslaunch.launch.command import activated
from dslaunch.launch.launchers import check_launcher
from dslaunch.launch.plan import LOG_DIRECTORY, NodePlan, Plan, Process, World, node_environment
from dslaunch.registry import LAUNCHERS

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation, Pairs, Placement
    from dslaunch.launch.job import Job
    from dslaunch.launch.plan import Decided


def make_plan(allocation: Allocation, job: Job, decided: Decided, *, cluster: str) -> Plan:
    """Return the plan. Pure: no clock, no environment, no file, no network.

    Raises PlanError if the launcher cannot run this allocation.
    """
    launcher = LAUNCHERS.get(job.launcher)
    world = World(allocation, decided.rendezvous, job.min_nodes)
    check_launcher(job.launcher, world)
    is_built_in = LAUNCHERS.is_built_in(job.launcher)
    environments: dict[Pairs, Pairs] = {}
    """Equal ones of nodes as one object: most are equal, and there may be thousands."""

    def node_plan(placement: Placement) -> NodePlan:
        processes = launcher.processes(placement, world, job, logs=LOG_DIRECTORY)
        if not is_built_in:
            _check_returned(job.launcher, processes)
        environment = node_environment(placement, job, decided.rendezvous)
        return NodePlan(
            host=placement.node.host,
            node_rank=placement.node_rank,
            slots=placement.slots,
            first_rank=placement.first_rank,
            cwd=decided.workdir,
            env=environments.setdefault(environment, environment),
            processes=_activated(processes, placement.node.activate),
            files=decided.files,
        )

    return Plan(
        cluster=cluster,
        launcher=job.launcher,
        world_size=allocation.world_size,
        rendezvous=decided.rendezvous,
        nodes=tuple(map(node_plan, allocation.placements)),
        secrets=tuple(s.name for s in job.secrets),
        decisions=decided.decisions,
    )


def _check_returned(launcher: str, processes: tuple[Process, ...]) -> None:
    """Raise PluginError if a plugin's launcher has returned something else."""
    LAUNCHERS.check_returned(launcher, processes, tuple)
    for process in processes:
        LAUNCHERS.check_returned(launcher, process, Process)


def _activated(processes: tuple[Process, ...], line: str | None) -> tuple[Process, ...]:
    """Return the processes, each started after a shell line if there is one."""
    if not line:
        return processes
    return tuple(replace(p, command=activated(p.command, line)) for p in processes)
