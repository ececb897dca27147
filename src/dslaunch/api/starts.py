"""Runs and rehearsals: the request, and the start."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dslaunch.api.arguments import PathText, directory
from dslaunch.api.earlier_runs import find_run
from dslaunch.api.nodes import select
from dslaunch.errors import PlanError, UsageError
from dslaunch.registry import plugin_faults
from dslaunch.run.timeouts import DEFAULTS, REHEARSAL_DEFAULTS, Timeouts, check_timeout
from dslaunch.run.view import ignore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from signal import Signals

    from dslaunch.cluster.model import Allocation, Cluster
    from dslaunch.launch.job import Job
    from dslaunch.rehearsal.judge import Rehearsal
    from dslaunch.run.events import Event, Line
    from dslaunch.run.handle import RunHandle
    from dslaunch.run.request import RunRequest
    from dslaunch.run.started_run import Run


def run_request(
    cluster: Cluster,
    job: Job,
    allocation: Allocation | None = None,
    *,
    cwd: PathText | None = None,
    environ: Mapping[str, str] | None = None,
    sync: bool = True,
    preflight: bool = True,
    force: bool = False,
    restarts: int | None = None,
    min_nodes: int | None = None,
    timeouts: Timeouts | None = None,
    detached: bool = False,
    notice: Signals | None = None,
) -> RunRequest:
    """Return the request to start a job, with what is not given. Raises SelectionError,
    UsageError."""
    from dslaunch.cluster.select import check_min_nodes
    from dslaunch.run.job_program import located
    from dslaunch.run.request import RunRequest

    if detached and cluster.by_steps:
        raise UsageError(
            "--detach: SLURM ends what a step of an allocation has started when the step ends",
            hint="`dslaunch slurm --detach` submits it as a separate job; or reach the nodes "
            "by SSH: `--transport fabric`",
        )
    where = directory(cwd)
    allocation = allocation or select(cluster)
    check_min_nodes(min_nodes, allocation)
    timeouts = timeouts or DEFAULTS
    timeouts.check()
    if cluster.by_steps:
        # SLURM ends what a step has started with the step: nothing would be left to connect to
        timeouts = replace(timeouts, reconnect=0.0)
    return RunRequest(
        cluster=cluster,
        allocation=allocation,
        job=located(job, where),
        cwd=where,
        environ=os.environ if environ is None else environ,
        sync=sync,
        timeouts=timeouts,
        detached=detached,
        preflight=preflight,
        restarts=_restarts(job, allocation, restarts, min_nodes),
        min_nodes=min_nodes,
        force=force,
        notice=notice,
    )


def _restarts(job: Job, allocation: Allocation, given: int | None, least: int | None) -> int:
    """Return the number of restarts: as given, else that of the launcher for `least` nodes."""
    from dslaunch.registry import LAUNCHERS

    if given is not None or least is None:
        return given or 0
    return LAUNCHERS.get(job.launcher).default_restarts(len(allocation.placements), least)


def check_not_scheduled(cluster: Cluster, environ: Mapping[str, str]) -> None:
    """Raise PlanError for nodes that belong to SLURM, outside of any allocation: ranks that are
    started there over SSH take the resources of other users' jobs."""
    from dslaunch.cluster.model import Slurm

    if cluster.slurm == Slurm() or not cluster.over_ssh or environ.get("SLURM_JOB_ID"):
        return
    raise PlanError(
        f"cluster {cluster.name!r} has a `slurm:` section, and this shell is in no allocation: its "
        "nodes belong to the scheduler",
        hint="submit it as a job: `dslaunch slurm CLUSTER.yaml SCRIPT`\n"
        "or allocate nodes first: `salloc ...`, then `dslaunch run --slurm CLUSTER.yaml SCRIPT`\n"
        "if SLURM does not manage these nodes: `dslaunch run --force`, or name `--transport`",
    )


def _refuse_scheduled(request: RunRequest) -> None:
    """Raise PlanError for nodes that belong to SLURM, unless the request is forced."""
    if not request.force:
        check_not_scheduled(request.cluster, request.environ)


@plugin_faults()
def run(
    cluster: Cluster,
    job: Job,
    allocation: Allocation | None = None,
    *,
    cwd: PathText | None = None,
    environ: Mapping[str, str] | None = None,
    sync: bool = True,
    preflight: bool = True,
    force: bool = False,
    restarts: int | None = None,
    min_nodes: int | None = None,
    grace: float = DEFAULTS.grace,
    exit_timeout: float = DEFAULTS.exit_timeout,
    heartbeat_timeout: float = DEFAULTS.heartbeat,
    reconnect_timeout: float = DEFAULTS.reconnect,
    hang_timeout: float | None = None,
    on_line: Callable[[Line], object] = ignore,
    on_event: Callable[[Event], object] = ignore,
) -> Run:
    """Start a job on its nodes, and return when it is planned and recorded.

    The run continues in a thread of this process; no signal is caught. `on_line` and `on_event` are
    called in that thread. Raises the DslaunchError that prevents the start.
    """
    timeouts = Timeouts(
        grace=grace,
        exit_timeout=exit_timeout,
        heartbeat=heartbeat_timeout,
        reconnect=reconnect_timeout,
        hang_timeout=hang_timeout,
    )
    request = run_request(
        cluster,
        job,
        allocation,
        cwd=cwd,
        environ=environ,
        sync=sync,
        preflight=preflight,
        force=force,
        restarts=restarts,
        min_nodes=min_nodes,
        timeouts=timeouts,
    )
    _refuse_scheduled(request)
    from dslaunch.run.started_run import Run

    return Run(request, on_line, on_event)


@plugin_faults()
def rehearse(
    cluster: Cluster,
    job: Job,
    allocation: Allocation | None = None,
    *,
    steps: int = 2,
    time_limit: float = 600.0,
    full: Allocation | None = None,
    cwd: PathText | None = None,
    environ: Mapping[str, str] | None = None,
    sync: bool = True,
    preflight: bool = True,
    force: bool = False,
    grace: float = DEFAULTS.grace,
    hang_timeout: float | None = REHEARSAL_DEFAULTS.hang_timeout,
    on_line: Callable[[Line], object] = ignore,
    on_event: Callable[[Event], object] = ignore,
) -> Rehearsal:
    """Run a job until all ranks have made some optimizer steps, and return what that has shown.

    Files that the script writes are named in the result, and stay. `time_limit`: seconds after the
    start of the ranks. `full`: what the real run has, if `allocation` is a part of it. Raises the
    DslaunchError that prevents the start.
    """
    from dslaunch.rehearsal.rehearse import rehearse as start
    from dslaunch.run.interrupts import Interrupts
    from dslaunch.run.rehearsal import RehearsalLimits
    from dslaunch.run.started_run import PlanView

    check_timeout("time_limit", time_limit)
    request = run_request(
        cluster,
        job,
        allocation,
        cwd=cwd,
        environ=environ,
        sync=sync,
        preflight=preflight,
        force=force,
        timeouts=Timeouts(grace=grace, hang_timeout=hang_timeout),
    )
    _refuse_scheduled(request)
    view = PlanView(on_line, on_event)
    limits = RehearsalLimits(steps, time_limit, full)
    result, _ = start(request, limits, lambda: view, Interrupts())
    return result


@plugin_faults()
def run_detached(
    cluster: Cluster,
    job: Job,
    allocation: Allocation | None = None,
    *,
    cwd: PathText | None = None,
    environ: Mapping[str, str] | None = None,
    sync: bool = True,
    preflight: bool = True,
    force: bool = False,
    restarts: int | None = None,
    min_nodes: int | None = None,
    grace: float = DEFAULTS.grace,
    exit_timeout: float = DEFAULTS.exit_timeout,
    heartbeat_timeout: float = DEFAULTS.heartbeat,
    hang_timeout: float | None = None,
) -> RunHandle:
    """Start a job whose nodes coordinate among themselves, and return its handle.

    The run continues without this process. `restarts` needs an elastic launcher. Raises the
    DslaunchError that prevents the start.
    """
    from dslaunch.run.interrupts import Interrupts
    from dslaunch.run.launch import run_job
    from dslaunch.run.view import QuietView

    timeouts = Timeouts(
        grace=grace,
        exit_timeout=exit_timeout,
        heartbeat=heartbeat_timeout,
        hang_timeout=hang_timeout,
    )
    request = run_request(
        cluster,
        job,
        allocation,
        cwd=cwd,
        environ=environ,
        sync=sync,
        preflight=preflight,
        force=force,
        restarts=restarts,
        min_nodes=min_nodes,
        timeouts=timeouts,
        detached=True,
    )
    _refuse_scheduled(request)
    view = QuietView()
    _, made = run_job(request, lambda: view, Interrupts())
    return find_run(made.name, environ=request.environ)
