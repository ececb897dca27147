"""Ask SLURM for nodes: those of the allocation that we are in, and those of a partition."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from dslaunch.cluster.discover import Discovered
from dslaunch.cluster.model import BY_STEPS, Cluster
from dslaunch.errors import DslaunchError, ToolMissingError, UsageError
from dslaunch.slurm.allocation import (
    bare_cluster,
    from_partition,
    from_sinfo,
    given,
    in_allocation,
    seen_by_steps,
)
from dslaunch.slurm.client import Client
from dslaunch.slurm.states import why_refused
from dslaunch.transport import srun

SHOW_GPUS = 'echo "$SLURMD_NODENAME=${CUDA_VISIBLE_DEVICES:-$ROCR_VISIBLE_DEVICES}"'
"""SLURM sets both where it does not know the GPUs' kind (gres.conf(5), Flags=nvidia_gpu_env)."""


def allocated(client: Client, cluster: Cluster | None) -> Cluster:
    """The cluster file with the nodes that SLURM gave, or those alone where there is no file.

    Which GPUs are ours scontrol knows; without it, as on some compute nodes (submitit #1601),
    their number must do. Raises UsageError outside an allocation.
    """
    environ = client.environ
    nodes = given(environ, _detail(client, environ.get("SLURM_JOB_ID", "")))
    return bare_cluster(nodes) if cluster is None else in_allocation(cluster, nodes)


def _detail(client: Client, number: str) -> str:
    try:
        command = ["scontrol", "--details", "show", "job", number]
        return client.run(command, "", client.environ).out if number else ""
    except DslaunchError:
        return ""


def by_steps(client: Client, cluster: Cluster) -> Cluster:
    """The cluster reached by steps of the allocation, with the GPUs numbered as a step sees them:
    from 0 where SLURM hides the others (cgroup.conf(5), ConstrainDevices).

    Raises UsageError outside an allocation, DslaunchError where no step can be started.
    """
    places = srun.places(client.environ)
    said = ""
    for place, hosts in groupby(places, key=places.__getitem__):
        names = list(hosts)
        argv = [*srun.command(place, ",".join(names), len(names)), "/bin/sh", "-c", SHOW_GPUS]
        done = client.run(argv, "", srun.environment(client.environ))
        if done.code:
            words = done.err.strip().splitlines() or ["it said nothing"]
            raise DslaunchError(
                f"no step can be started in job {place.job}: {words[-1]}",
                hint="`--transport fabric` reaches the nodes by SSH instead",
            )
        said += done.out
    gpus = seen_by_steps(said)
    nodes = tuple(replace(n, slots=gpus.get(n.host) or n.slots) for n in cluster.nodes)
    return replace(cluster, nodes=nodes, transport=BY_STEPS)


def partition(client: Client, name: str, slots: int | None = None) -> Discovered:
    """The nodes of a partition. Raises UsageError, ToolMissingError."""
    try:
        done = client.run(["scontrol", "--oneliner", "show", "node"], "", client.environ)
        if done.code == 0:
            return from_partition(done.out, name, slots)
    except ToolMissingError:
        pass
    command = ["sinfo", "--Node", "--noheader", f"--partition={name}", "--format=%N|%G|%T"]
    done = client.run(command, "", client.environ)
    if done.code:
        refusal = why_refused(done.err)
        raise UsageError(f"partition {name}: {refusal.words}", hint=refusal.hint)
    return from_sinfo(done.out, name, slots)
