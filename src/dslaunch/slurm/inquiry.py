"""Ask SLURM for nodes: those of the allocation that we are in, and those of a partition."""

from __future__ import annotations

from dslaunch.cluster.discover import Discovered
from dslaunch.cluster.model import Cluster
from dslaunch.errors import DslaunchError, ToolMissingError, UsageError
from dslaunch.slurm.allocation import bare_cluster, from_partition, from_sinfo, given, in_allocation
from dslaunch.slurm.client import Client


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
        raise UsageError(f"partition {name}: {done.err.strip().removeprefix('sinfo: error: ')}")
    return from_sinfo(done.out, name, slots)
