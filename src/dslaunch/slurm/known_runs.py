"""Find runs of all kinds: in this machine's records, else by asking nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.cluster.model import Cluster
from dslaunch.cluster.nodeset import fold
from dslaunch.errors import NodeFailure, UsageError
from dslaunch.run.handle import RunHandle
from dslaunch.run.local_runs import LATEST, LocalRun, local_runs, one_of, runs_back
from dslaunch.run.run_selection import EVERY_RUN, Pick, RunSelection, every_record, newest
from dslaunch.run.run_state import ENDED
from dslaunch.run.ssh_run import SshRun
from dslaunch.run.status import Reports, RunStatus, ask_clusters
from dslaunch.slurm.client import SlurmClient
from dslaunch.slurm.slurm_run import JobName, SharedClient, SlurmRun


class KnownRuns(Struct, frozen=True):
    """Runs, and the failed queries about them."""

    handles: tuple[RunHandle, ...]
    """Those that this machine has started, the newest last; then others that nodes know."""
    statuses: tuple[RunStatus, ...]
    """The state of each, in the same order."""
    failures: Mapping[str, NodeFailure]
    """Of nodes that did not answer, by name."""
    errors: tuple[UsageError, ...]
    """Records that cannot be read, and runs whose nodes are unknown."""


def known_runs(
    client: SlurmClient,
    cluster: Cluster | None = None,
    selection: RunSelection = EVERY_RUN,
) -> KnownRuns:
    """Return the runs that this machine has started, and all that nodes of `cluster` know.

    Records that the selection leaves out need not be read. The nodes of the others that may not
    have ended are asked too, each on its own cluster.
    Raises UsageError for a state directory that others control.
    """
    local = local_runs(client.environ, selection.pick)
    chosen = [run for run in local.started if selection.has_record(run.record)]
    own = handles(chosen, client)
    unended = {run.record.agents for run in chosen if run.result is None}

    def has_progress(run: RunStatus) -> bool:
        return run.state not in ENDED or run.run in unended

    reports = reports_on(own, cluster, has_progress)
    if cluster is not None and selection.pick is not every_record:
        # the nodes report runs by the names of their agents, whichever records were read
        local = local_runs(client.environ)
    started_here = {run.record.agents for run in local.runs}
    others: list[RunHandle] = []
    if cluster is not None:
        others = [
            found_on(cluster, found)
            for agents, found in reports.runs.items()
            if agents not in started_here
        ]
    found = (*own, *others)
    return KnownRuns(
        handles=found,
        statuses=tuple(run.summary(reports) for run in found),
        failures=reports.failures,
        errors=(*local.unreadable, *reports.unasked.values()),
    )


def handles(runs: Iterable[LocalRun], client: SlurmClient, part: str = "") -> list[RunHandle]:
    """Return the handles of recorded runs. `part`: the task of a job that the user has named."""
    shared = SharedClient(client)
    return [
        SshRun.recorded(run) if run.record.slurm is None else SlurmRun(run, shared, part)
        for run in runs
    ]


def reports_on(
    runs: Iterable[RunHandle],
    also: Cluster | None = None,
    has_progress: Callable[[RunStatus], bool] = lambda run: False,
) -> Reports:
    """Ask the nodes for the state of these runs, and of all runs of a cluster, at the same time;
    `has_progress` as `ask_clusters`."""
    clusters = [] if also is None else [also]
    unasked: dict[str, UsageError] = {}
    for run in runs:
        try:
            cluster = run.cluster_to_ask()
        except UsageError as error:  # of another version
            unasked[run.name] = error
            continue
        if cluster is not None and cluster not in clusters:
            clusters.append(cluster)
    return replace(ask_clusters(clusters, has_progress), unasked=unasked)


# ---------------------------------------------------------------- one run


def recorded_run(name: str, client: SlurmClient, *, elsewhere: bool = False) -> RunHandle | None:
    """Return the run of this name or SLURM job, or the only one whose name starts with it.

    None: this machine has no record of it. `elsewhere`: it may have been started from another
    machine, so only `latest` and jobs are looked for here. Raises UsageError.
    """
    local = local_runs(client.environ, _only(name))
    job = JobName.parse(name)
    found = None if elsewhere else local.exactly(name)
    if found is None and job is not None:
        found = job.find(local.started)
    if found is None and (runs_back(name) is not None or not elsewhere):
        found = local.find(name)
        # a number is a job's number, never the start of a run's name
        if found is not None and found.record.slurm is not None and job is not None:
            why = f"no job of this machine has this number; found run {found.run}"
            raise unknown_run(name, why)
    if found is None:
        return None
    part = name if job is not None and job.part else ""
    (handle,) = handles([found], client, part)
    return handle


def _only(name: str) -> Pick:
    """Return which records are read to find a run of this name: with many, all take seconds."""
    if name == LATEST:
        return newest(1)

    def pick(directories: list[Path]) -> list[Path]:
        exact = [path for path in directories if path.name == name]
        return exact or directories

    return pick


def run_on(cluster: Cluster, name: str) -> RunHandle:
    """Ask the nodes of a cluster for a run. Raises UsageError if no node has it."""
    reports = ask_clusters([cluster])
    found = one_of(reports.runs, name)
    if found is None:
        unresponsive = fold(reports.failures)
        missing = f"; unreachable: {unresponsive}" if unresponsive else ""
        raise unknown_run(name, f"not found on the nodes of {cluster.name}{missing}")
    return found_on(cluster, found)


def found_on(cluster: Cluster, found: RunStatus) -> RunHandle:
    """Return the handle of a run that nodes have reported."""
    run = found.run.partition("+")[0]
    ranks = found.record.world_size
    complete = all(node.state in ("running", "ended") for node in found.nodes.values())
    return SshRun(
        run,
        found.run,
        found.record.hosts,
        found_on=cluster,
        world_size=ranks if complete else None,
    )


def unknown_run(name: str, why: str) -> UsageError:
    """Return the error for a run that is not found."""
    hint = "list all runs with `dslaunch ps --all CLUSTER.yaml`"
    return UsageError(f"run {name!r} not found: {why}", hint=hint)
