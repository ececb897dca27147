"""Query SLURM for nodes: those of the current allocation, and those of a partition."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.cluster.model import Cluster
from dslaunch.errors import DslaunchError, UsageError
from dslaunch.registry import TRANSPORTS
from dslaunch.slurm.allocation import (
    allocated_nodes,
    bare_cluster,
    gpu_mismatches,
    in_allocation,
    seen_by_steps,
    with_source,
)
from dslaunch.slurm.client import SlurmClient
from dslaunch.slurm.partition import FORMAT, Partition, parse_partition
from dslaunch.slurm.refusal import parse_refusal
from dslaunch.slurm.scontrol import allowed_accounts
from dslaunch.transport.transports import srun

SHOW_GPUS = 'echo "$SLURMD_NODENAME=${CUDA_VISIBLE_DEVICES:-$ROCR_VISIBLE_DEVICES}"'
"""SLURM sets both if it does not know the vendor of the GPUs (gres.conf(5), nvidia_gpu_env)."""


def allocated(client: SlurmClient, cluster: Cluster | None) -> Cluster:
    """Return the cluster file with the allocated nodes, or a cluster of these nodes without a file.

    scontrol shows the allocated GPUs; without it, as on some compute nodes (submitit #1601), only
    their number is known. Raises UsageError outside an allocation.
    """
    environ = client.environ
    nodes = allocated_nodes(environ, _detail(client, environ.get("SLURM_JOB_ID", "")))
    return with_source(bare_cluster(nodes) if cluster is None else in_allocation(cluster, nodes))


def _detail(client: SlurmClient, number: str) -> str:
    try:
        return client.scontrol("--details", "show", "job", number).out if number else ""
    except DslaunchError:
        return ""


def with_transport(
    client: SlurmClient, cluster: Cluster, name: str | None, *, in_allocation: bool = False
) -> Cluster:
    """Return the cluster with another transport; None: with that of the file.

    `in_allocation`: its nodes are those of the current allocation. Its default transport is
    replaced by SLURM steps, if srun is installed: many sites do not allow logins. Raises
    UsageError, and DslaunchError as `by_steps` does.
    """
    is_default = cluster.transport == Cluster("", ()).transport
    has_steps = shutil.which(srun.NAME, path=client.environ.get("PATH")) is not None
    if name is None and in_allocation and is_default and has_steps:
        name = srun.NAME
    if name is None or name == cluster.transport:
        return cluster
    if TRANSPORTS.get(name).by_steps:
        return by_steps(client, cluster, name)
    return replace(cluster, transport=name)


def by_steps(client: SlurmClient, cluster: Cluster, transport: str = srun.NAME) -> Cluster:
    """Return the cluster reached by steps of the allocation, with the GPU indexes that a step sees:
    from 0 if SLURM hides other GPUs (cgroup.conf(5), ConstrainDevices).

    Raises UsageError outside an allocation, DslaunchError if no step can be started, or if a step
    gets fewer GPUs than the job has.
    """
    places = srun.places(client.environ)
    gpus: dict[str, tuple[int, ...]] = {}
    for step in _steps(places, cluster):
        gpus |= seen_by_steps(_shown(client, step))
    mismatches = gpu_mismatches(cluster.nodes, gpus)
    if mismatches:
        raise DslaunchError(
            "\n".join(map(str, mismatches)),
            hint="request GPUs per node, for example `--gres=gpu:N`; or use SSH: "
            "`--transport fabric`",
        )
    nodes = tuple(replace(n, slots=gpus.get(n.host) or n.slots) for n in cluster.nodes)
    return with_source(replace(cluster, nodes=nodes, transport=transport))


class GpuQuery(Struct, frozen=True):
    """A step that queries several nodes of one component."""

    place: srun.StepPlace
    hosts: tuple[str, ...]
    gpus: int | None
    """The number to request on each of them; None: unknown, or none."""


def _steps(places: Mapping[str, srun.StepPlace], cluster: Cluster) -> Iterator[GpuQuery]:
    """Yield one step per component; one per node if the nodes of a component have different numbers
    of GPUs, which a step of several nodes cannot request."""
    counts = {node.host: node.step_gpus for node in cluster.nodes}
    for place, group in groupby(places, key=places.__getitem__):
        hosts = tuple(group)
        different = {counts.get(host) for host in hosts}
        if len(different) == 1:
            yield GpuQuery(place, hosts, different.pop())
        else:
            yield from (GpuQuery(place, (host,), counts.get(host)) for host in hosts)


def _shown(client: SlurmClient, step: GpuQuery) -> str:
    """Return the GPUs that the nodes of a step print. Raises DslaunchError.

    SLURM may refuse the number of GPUs that it has printed itself; then the step requests none, and
    the caller compares the numbers.
    """
    where = (step.place, ",".join(step.hosts), len(step.hosts))
    show = ["/bin/sh", "-c", SHOW_GPUS]
    environ = srun.environment(client.environ)
    done = client.run([*srun.command(*where, step.gpus), *show], "", environ)
    if done.code and step.gpus:
        done = client.run([*srun.command(*where), *show], "", environ)
    if done.code == 0:
        return done.out
    lines = done.err.strip().splitlines() or ["srun gave no reason"]
    raise DslaunchError(
        f"job {step.place.job}: a step cannot be started: {lines[-1]}",
        hint="use SSH instead: `--transport fabric`",
    )


def partition(client: SlurmClient, name: str) -> Partition:
    """Return a partition with its nodes and limits. Raises UsageError, ToolMissingError."""
    command = ["sinfo", "--Node", "--noheader", f"--partition={name}", f"--format={FORMAT}"]
    done = client.run(command, "", client.environ)
    if done.code:
        refusal = parse_refusal(done.err)
        raise UsageError(f"partition {name}: {refusal.text}", hint=refusal.hint)
    return parse_partition(done.out, name, _accounts(client, name))


def _accounts(client: SlurmClient, name: str) -> tuple[str, ...]:
    """Return the accounts that may use a partition, which sinfo does not print; empty: all, or
    unknown."""
    try:
        command = ["scontrol", "--oneliner", "show", "partition", name]
        done = client.run(command, "", client.environ)
    except DslaunchError:
        return ()
    return allowed_accounts(done.out) if done.code == 0 else ()
