"""Runs that were started before."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dslaunch.errors import ErrorCode, UsageError
from dslaunch.registry import plugin_faults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dslaunch.cluster.model import Cluster
    from dslaunch.run.compare_runs import RunComparison
    from dslaunch.run.handle import RunHandle
    from dslaunch.run.run_details import RunDetails
    from dslaunch.run.run_selection import RunSelection
    from dslaunch.slurm.known_runs import KnownRuns


@plugin_faults()
def runs(
    cluster: Cluster | None = None,
    *,
    selection: RunSelection | None = None,
    environ: Mapping[str, str] | None = None,
) -> KnownRuns:
    """Return the runs that this machine has started, and with a cluster those that its nodes know,
    each with its state. With a selection, others may be left out. Raises UsageError.
    """
    from dslaunch.run.run_selection import EVERY_RUN
    from dslaunch.slurm.client import here
    from dslaunch.slurm.known_runs import known_runs

    return known_runs(here(environ), cluster, selection or EVERY_RUN)


@plugin_faults()
def find_run(
    name: str = "latest",
    cluster: Cluster | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> RunHandle:
    """Return the handle of a run: by its name, the beginning of it, or the number of a SLURM job.

    `latest` is the one that this machine has started last. With a cluster, its nodes are asked for
    a run that was started from another machine. Raises UsageError if there is none.
    """
    from dslaunch.slurm.client import here
    from dslaunch.slurm.known_runs import recorded_run, run_on

    found = recorded_run(name, here(environ), elsewhere=cluster is not None)
    if found is not None:
        return found
    if cluster is None:
        raise UsageError.coded(ErrorCode.RUN_NOT_RECORDED, name=name)
    return run_on(cluster, name)


@plugin_faults()
def run_details(
    run: RunHandle | str = "latest", *, environ: Mapping[str, str] | None = None
) -> RunDetails:
    """Return all that is known of a run: events, progress, usage, decisions, inputs, outcome.

    `dslaunch report` shows it as an HTML page. The nodes of a run are asked only if this machine
    has not recorded everything. Raises DslaunchError if nothing is known.
    """
    from dslaunch.run.local_runs import local_runs
    from dslaunch.run.run_details import run_details as details_of

    handle = find_run(run, environ=environ) if isinstance(run, str) else run
    local = local_runs(os.environ if environ is None else environ).exactly(handle.name)
    return details_of(handle, local)


@plugin_faults()
def compare_runs(
    first: str | None = None,
    second: str = "latest",
    *,
    environ: Mapping[str, str] | None = None,
) -> RunComparison:
    """Return what differs between two runs that this machine has started.

    Without a first run, that is the last successful run of the same program before the second.
    Raises UsageError for a run that is not recorded here.
    """
    from dslaunch.run.compare_runs import compare_runs as compared
    from dslaunch.run.local_runs import local_runs
    from dslaunch.run.recorded_run import good_run_before, recorded_run

    local = local_runs(os.environ if environ is None else environ)
    newer = local.named(second)
    older = good_run_before(local.started, newer) if first is None else local.named(first)
    return compared(recorded_run(older), recorded_run(newer))
