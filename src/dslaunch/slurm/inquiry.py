"""Ask SLURM for nodes: those of the allocation that we are in, and those of a partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from dslaunch.cluster.model import Cluster
from dslaunch.errors import DslaunchError, UsageError
from dslaunch.slurm.allocation import (
    bare_cluster,
    fewer_gpus,
    given,
    in_allocation,
    seen_by_steps,
)
from dslaunch.slurm.client import Client
from dslaunch.slurm.partition import FORMAT, Partition, allowed_accounts, parse_partition
from dslaunch.slurm.refusal import why_refused
from dslaunch.transport.transports import srun

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

    Raises UsageError outside an allocation, DslaunchError where no step can be started, or where
    steps get fewer GPUs than the job has.
    """
    places = srun.places(client.environ)
    gpus: dict[str, tuple[int, ...]] = {}
    for step in _steps(places, cluster):
        gpus |= seen_by_steps(_shown(client, step))
    wrong = fewer_gpus(cluster.nodes, gpus)
    if wrong:
        raise DslaunchError(
            "\n".join(wrong),
            hint="request the GPUs per node, as in `--gres=gpu:N`; or reach the nodes by SSH: "
            "`--transport fabric`",
        )
    nodes = tuple(replace(n, slots=gpus.get(n.host) or n.slots) for n in cluster.nodes)
    return replace(cluster, nodes=nodes, transport=srun.NAME)


@dataclass(frozen=True, slots=True)
class Step:
    """A step that asks several nodes of one component at once."""

    place: srun.StepPlace
    hosts: tuple[str, ...]
    gpus: int | None
    """How many to request on each of them; None: unknown, or none."""


def _steps(places: Mapping[str, srun.StepPlace], cluster: Cluster) -> Iterator[Step]:
    """One step per component; one per node in a component whose nodes have unequal GPUs, which no
    step of several nodes can request."""
    counts = {node.host: node.step_gpus for node in cluster.nodes}
    for place, group in groupby(places, key=places.__getitem__):
        hosts = tuple(group)
        different = {counts.get(host) for host in hosts}
        if len(different) == 1:
            yield Step(place, hosts, different.pop())
        else:
            yield from (Step(place, (host,), counts.get(host)) for host in hosts)


def _shown(client: Client, step: Step) -> str:
    """What the nodes of a step print of their GPUs. Raises DslaunchError.

    SLURM may refuse the number of GPUs that it has itself named; then the step gets what it gets,
    and the caller compares.
    """
    where = (step.place, ",".join(step.hosts), len(step.hosts))
    show = ["/bin/sh", "-c", SHOW_GPUS]
    environ = srun.environment(client.environ)
    done = client.run([*srun.command(*where, step.gpus), *show], "", environ)
    if done.code and step.gpus:
        done = client.run([*srun.command(*where), *show], "", environ)
    if done.code == 0:
        return done.out
    words = done.err.strip().splitlines() or ["it said nothing"]
    raise DslaunchError(
        f"no step can be started in job {step.place.job}: {words[-1]}",
        hint="`--transport fabric` reaches the nodes by SSH instead",
    )


def partition(client: Client, name: str) -> Partition:
    """A partition with its nodes and limits. Raises UsageError, ToolMissingError."""
    command = ["sinfo", "--Node", "--noheader", f"--partition={name}", f"--format={FORMAT}"]
    done = client.run(command, "", client.environ)
    if done.code:
        refusal = why_refused(done.err)
        raise UsageError(f"partition {name}: {refusal.words}", hint=refusal.hint)
    return parse_partition(done.out, name, _accounts(client, name))


def _accounts(client: Client, name: str) -> tuple[str, ...]:
    """The accounts that may use it, which sinfo does not say; empty: all, or it is not known."""
    try:
        command = ["scontrol", "--oneliner", "show", "partition", name]
        done = client.run(command, "", client.environ)
    except DslaunchError:
        return ()
    return allowed_accounts(done.out) if done.code == 0 else ()
