"""Find a run by its name: in this machine's records, else by asking nodes."""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli.options import find_cluster, open_cluster
from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dslaunch.cluster.model import Cluster
    from dslaunch.run.handle import RunHandle
    from dslaunch.run.local import LocalRun
    from dslaunch.run.status import Reports

RunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Its name, a beginning of it, or `latest` of this machine."),
]
ClusterOfRun = Annotated[
    Path | None,
    typer.Argument(
        metavar="CLUSTER.yaml",
        help="The cluster file, where the run was started from another machine.",
    ),
]


def handles(runs: Iterable[LocalRun], named: str = "") -> list[RunHandle]:
    """Return what looks after runs of this machine; `named` is what the user wrote."""
    from dslaunch.run.ssh_run import SshRun
    from dslaunch.slurm.client import here
    from dslaunch.slurm.slurm_run import JobName, SharedClient, SlurmRun

    slurm = SharedClient(here())
    job = JobName.parse(named)
    part = named if job is not None and job.part else ""
    return [
        SshRun.recorded(run) if run.record.slurm is None else SlurmRun(run, slurm, part)
        for run in runs
    ]


def find(name: str, file: Path | None) -> RunHandle:
    """Find a run. Raises UsageError if there is none of that name."""
    local = _recorded(name, file)
    if local is not None:
        (handle,) = handles([local], name)
        return handle
    try:
        cluster = open_cluster(find_cluster(file))
    except UsageError:
        raise _unknown(name, "this machine did not start it, and no cluster file is here") from None
    return _ask(name, cluster)


def _recorded(name: str, file: Path | None) -> LocalRun | None:
    """Return the run of that exact name, or of that job, or the only one that begins so.

    A number names a job, never the beginning of a run that is a job of another number.
    Raises UsageError.
    """
    from dslaunch.run.local import LATEST, local_runs
    from dslaunch.slurm.slurm_run import JobName

    local = local_runs(os.environ)
    job = JobName.parse(name)
    exact = local.exactly(name) if file is None else None
    if exact is None and job is not None:
        exact = job.find(local.started)
    if exact is not None:
        return exact
    if file is not None and name != LATEST:
        return None
    alike = local.find(name)
    if alike is not None and alike.record.slurm is not None and job is not None:
        raise _unknown(name, f"no job of this machine has that number; {alike.run} begins so")
    return alike


def _ask(name: str, cluster: Cluster) -> RunHandle:
    from dslaunch.run.local import one_of
    from dslaunch.run.ssh_run import SshRun
    from dslaunch.run.status import ask_clusters

    reports = ask_clusters([cluster])
    found = one_of(reports.runs, name)
    if found is None:
        silent = ", ".join(reports.failures)
        missing = f"; no answer from {silent}" if silent else ""
        raise _unknown(name, f"no node of {cluster.name} knows it{missing}")
    run = found.run.partition("+")[0]
    return SshRun(run, found.run, found.record.hosts, found_on=cluster)


def reports_on(runs: Iterable[RunHandle]) -> Reports:
    """Ask the nodes that know how these runs stand, each cluster once."""
    from dataclasses import replace

    from dslaunch.run.status import ask_clusters

    clusters: list[Cluster] = []
    unasked: dict[str, UsageError] = {}
    for run in runs:
        try:
            cluster = run.cluster_to_ask()
        except UsageError as error:  # of another version
            unasked[run.name] = error
            continue
        if cluster is not None and cluster not in clusters:
            clusters.append(cluster)
    return replace(ask_clusters(clusters), unasked=unasked)


def ranks_of(run: RunHandle, text: str | None) -> frozenset[int] | None:
    """Read ranks of a run. Raises UsageError, also for one that it certainly never had: how many it
    has is known of runs of this machine, and those of an earlier attempt may have been more."""
    from dslaunch.cli.run_views import check_ranks, parse_ranks

    ranks = parse_ranks(text)
    if run.record is not None and not run.record.attempt:
        check_ranks(ranks, run.record.world_size, text)
    return ranks


def _unknown(name: str, why: str) -> UsageError:
    hint = "`dslaunch ps --all CLUSTER.yaml` lists the runs"
    return UsageError(f"no run {name!r}: {why}", hint=hint)


def caller() -> str:
    """Return `USER@HOST`, which the owner of a run is told when it is stopped."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
