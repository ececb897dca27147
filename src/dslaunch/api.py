"""The public Python API; `dslaunch` offers the names, docs/reference/api.md documents them.

The command line uses it too. Nothing here prints, reads options or keeps state between calls.
What is imported is imported by the function that needs it, since each takes another part.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dslaunch.errors import ErrorCode, PlanError, UsageError
from dslaunch.json_text import json_literal
from dslaunch.registry import plugin_faults
from dslaunch.run.timeouts import DEFAULTS, REHEARSAL_DEFAULTS, Timeouts, check_timeout
from dslaunch.run.view import ignore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from signal import Signals

    from dslaunch.cluster.model import Allocation, Cluster
    from dslaunch.deepspeed.estimate import EstimateInput, Recommendation, Row
    from dslaunch.deepspeed.model_size import Sized
    from dslaunch.launch.job import Job
    from dslaunch.launch.plan import Decided, Plan
    from dslaunch.lint import Screened
    from dslaunch.preflight.check import Tier
    from dslaunch.preflight.check_selection import CheckSelection
    from dslaunch.preflight.judge import Report
    from dslaunch.preflight.recording import Recording
    from dslaunch.rehearsal.judge import Rehearsal
    from dslaunch.render.launch import Rendered
    from dslaunch.run.compare_runs import RunComparison
    from dslaunch.run.events import Event, Line
    from dslaunch.run.handle import RunHandle
    from dslaunch.run.hardware import Hardware
    from dslaunch.run.preflight_survey import OnProgress
    from dslaunch.run.request import RunRequest
    from dslaunch.run.run_details import RunDetails
    from dslaunch.run.run_selection import RunSelection
    from dslaunch.run.started_run import Run
    from dslaunch.slurm.known_runs import KnownRuns
    from dslaunch.slurm.lint import ScriptLint
    from dslaunch.slurm.settings import SlurmSetting
    from dslaunch.slurm.slurm_job import SlurmJob

Precision = Literal["bf16", "fp16", "fp32"]
AttentionKind = Literal["sdpa", "eager"]
PathText = str | os.PathLike[str]
MOST_FACTOR = 1000
"""The largest `buffer_factor`: a larger one is a slip."""


def _directory(cwd: PathText | None) -> Path:
    return Path.cwd() if cwd is None else Path(cwd).absolute()


def select(
    cluster: Cluster,
    *,
    include: str = "",
    exclude: str = "",
    nodes: int | None = None,
    slots: int | None = None,
    labels: Sequence[str] = (),
) -> Allocation:
    """Return the nodes and slots that a run uses, in rank order; by default all but spares.

    Raises SelectionError.
    """
    from dslaunch.cluster.select import Selection
    from dslaunch.cluster.select import select as choose

    selection = Selection(include, exclude, nodes, slots, _several("labels", labels))
    return choose(cluster, selection)


def _several(name: str, given: Sequence[str]) -> tuple[str, ...]:
    """Return a list of texts as a tuple. Raises UsageError for one text: that is no list of its
    letters."""
    if isinstance(given, str):
        raise UsageError(f"{name}: one text instead of a list of texts", hint=f"{name}=[{given!r}]")
    return tuple(given)


def allocated(
    cluster: Cluster | None = None, *, environ: Mapping[str, str] | None = None
) -> Cluster:
    """Return the nodes and GPUs of the SLURM allocation that this process is in; all else is as in
    `cluster`. Raises UsageError outside an allocation.
    """
    from dslaunch.slurm import node_discovery
    from dslaunch.slurm.client import here

    return node_discovery.allocated(here(environ), cluster)


@plugin_faults()
def with_transport(
    cluster: Cluster,
    name: str | None = None,
    *,
    in_allocation: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Cluster:
    """Return the cluster whose nodes are reached by this transport; None: as the cluster says.

    With `in_allocation`, its nodes are those that `allocated` has returned: steps of the allocation
    take the place of the default transport where srun is installed. Raises UsageError, and
    DslaunchError where no step can be started.
    """
    if name is None and not in_allocation:
        return cluster
    from dslaunch.slurm import node_discovery
    from dslaunch.slurm.client import here

    client = here(environ)
    return node_discovery.with_transport(client, cluster, name, in_allocation=in_allocation)


# ---------------------------------------------------------------- plan and render


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

    directory = _directory(cwd)
    allocation = allocation or select(cluster)
    decided = _assumed(cluster, allocation, master_addr, master_port, directory)
    launch = Launch(cluster.name, allocation, located(job, directory), decided)
    return formats.render(name, launch)


def _assumed(
    cluster: Cluster,
    allocation: Allocation,
    address: str | None,
    port: int | None,
    cwd: Path,
) -> Decided:
    """Return what is assumed of the nodes, less what is given of the master."""
    from dslaunch.launch.assume import assume
    from dslaunch.launch.decisions import MASTER_ASSUMED, DecisionCode, decision

    network = replace(cluster.network, master_port=port or cluster.network.master_port)
    decided = assume(replace(cluster, network=network), allocation, str(cwd))
    if address is None:
        return decided
    given = decision(DecisionCode.MASTER_GIVEN, address=address, port=decided.rendezvous.port)
    decisions = (given if each.code in MASTER_ASSUMED else each for each in decided.decisions)
    rendezvous = replace(decided.rendezvous, address=address)
    return replace(decided, rendezvous=rendezvous, decisions=tuple(decisions))


# ---------------------------------------------------------------- preflight


@plugin_faults()
def preflight(
    cluster: Cluster,
    allocation: Allocation | None = None,
    job: Job | None = None,
    *,
    tier: Tier = "static",
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    purposes: Sequence[str] = (),
    cwd: PathText | None = None,
    on_progress: OnProgress = ignore,
) -> Report:
    """Ask the nodes whether they are fit to train on, and return the findings.

    Without an allocation spares are asked too; without a job that of the cluster file counts. Nodes
    that do not answer are findings. Raises UsageError.
    """
    from dslaunch.launch.job import Job
    from dslaunch.preflight.judge import judge
    from dslaunch.run.preflight_survey import ask_nodes, preflight_scope

    if job is None:
        job = Job.on(cluster) if has_job(cluster) else Job.on(cluster, "")
    wanted = _checks(tier, only, skip, purposes)
    scope, checks = preflight_scope(cluster, allocation, job, wanted, _directory(cwd))
    return judge(ask_nodes(scope, checks, tier, on_progress), checks)


@plugin_faults()
def replay_preflight(
    recording: Recording,
    cluster: Cluster | None = None,
    allocation: Allocation | None = None,
    *,
    tier: Tier | None = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    purposes: Sequence[str] = (),
    launcher: str | None = None,
) -> Report:
    """Judge recorded answers, and return the findings. No node is asked.

    What is not given is as recorded. Raises UsageError.
    """
    from dslaunch.preflight.judge import judge
    from dslaunch.run.preflight_survey import checks_again, scoped_again

    wanted = _checks(tier or "static", only, skip, purposes)
    facts = scoped_again(
        recording,
        cluster=cluster,
        allocation=allocation,
        purposes=wanted.purposes,
        launcher=launcher,
    )
    return judge(facts, checks_again(wanted, facts, tiered=tier is not None))


def _checks(
    tier: Tier, only: Sequence[str], skip: Sequence[str], purposes: Sequence[str]
) -> CheckSelection:
    """Return which checks are wanted. Raises UsageError."""
    from dslaunch.preflight.check_selection import CheckSelection, tier_of
    from dslaunch.preflight.check_selection import purposes as known_purposes

    return CheckSelection(
        tier=tier_of(tier),
        only=_several("only", only),
        skip=_several("skip", skip),
        purposes=known_purposes(_several("purposes", purposes)),
    )


def has_job(cluster: Cluster) -> bool:
    """Return whether the cluster file says what to run."""
    return cluster.job is not None and bool(cluster.job.script or cluster.job.module)


# ---------------------------------------------------------------- run


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
    """Return what is asked of `run.launch`. Raises SelectionError, UsageError."""
    from dslaunch.cluster.select import check_min_nodes
    from dslaunch.run.job_program import located
    from dslaunch.run.request import RunRequest

    if detached and cluster.by_steps:
        raise UsageError(
            "--detach: SLURM ends what a step of an allocation has started when the step ends",
            hint="`dslaunch slurm --detach` submits it as a separate job; or reach the nodes "
            "by SSH: `--transport fabric`",
        )
    directory = _directory(cwd)
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
        job=located(job, directory),
        cwd=directory,
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
    """Return how often to restart if that is not set."""
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
    if not force:
        check_not_scheduled(cluster, request.environ)
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
    if not force:
        check_not_scheduled(cluster, request.environ)
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
    if not force:
        check_not_scheduled(cluster, request.environ)
    view = QuietView()
    _, directory = run_job(request, lambda: view, Interrupts())
    return find_run(directory.name, environ=request.environ)


# ---------------------------------------------------------------- earlier runs


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


# ---------------------------------------------------------------- SLURM


@plugin_faults()
def slurm_job(
    cluster: Cluster,
    job: Job,
    *,
    include: str = "",
    exclude: str = "",
    nodes: int | None = None,
    slots: int | None = None,
    labels: Sequence[str] = (),
    settings: Mapping[str, SlurmSetting] | None = None,
    template: PathText | None = None,
    supervised: bool | None = None,
    restarts: int | None = None,
    min_nodes: int | None = None,
    hang_timeout: float | None = None,
    preflight: bool = True,
    force: bool = False,
    cwd: PathText | None = None,
    environ: Mapping[str, str] | None = None,
    on_notice: Callable[[str], object] = ignore,
) -> SlurmJob:
    """Return the job for SLURM: its script, and what would stop it. Nothing is submitted.

    Raises UsageError, SelectionError, PlanError.
    """
    from dslaunch.cluster.select import Selection
    from dslaunch.slurm.client import here
    from dslaunch.slurm.settings import setting_texts
    from dslaunch.slurm.slurm_job import SlurmRequest, prepare_job
    from dslaunch.slurm.supervision import Supervision

    check_timeout("hang_timeout", hang_timeout)
    request = SlurmRequest(
        selection=Selection(include, exclude, nodes, slots, _several("labels", labels)),
        cwd=_directory(cwd),
        settings=setting_texts(settings or {}),
        supervision=Supervision(
            supervised=supervised,
            restarts=restarts,
            hang_timeout=hang_timeout,
            preflight=preflight,
        ),
        min_nodes=min_nodes,
        template=None if template is None else Path(template),
        force=force,
    )
    return prepare_job(cluster, job, request, replace(here(environ), notice=on_notice))


@plugin_faults()
def lint_script(
    script: PathText,
    *,
    text: str | None = None,
    cwd: PathText | None = None,
    ignore: Collection[str] = (),
) -> ScriptLint:
    """Return what is wrong, risky and right in an sbatch script. It is neither run nor submitted.

    With `text`, that is the script, and `script` its name in messages. `cwd` is where it would be
    submitted. Raises UsageError for an unknown rule, ConfigError for an unreadable file.
    """
    from dslaunch.lint.suppression import check_rules
    from dslaunch.lint.user_text import read_file
    from dslaunch.slurm import lint
    from dslaunch.slurm.rules import rules
    from dslaunch.slurm.syntax import refusal

    check_rules(ignore, rules().names)
    source = read_file(Path(script)) if text is None else text
    directory = _directory(cwd)

    def exists(name: str) -> bool:
        return (directory / name).is_dir()

    return lint.lint_script(source, str(script), exists, refusal(source), ignore)


# ---------------------------------------------------------------- DeepSpeed


@plugin_faults()
def lint_config(
    config: PathText | Mapping[str, object],
    *,
    hardware: Hardware | None = None,
    script_args: Sequence[str] | None = None,
    reader: str | None = None,
    version: str | None = None,
    world: int | None = None,
    tensor: int = 1,
    pipeline: int = 1,
    parameters: float | None = None,
    ignore: Collection[str] = (),
) -> Screened:
    """Return what DeepSpeed would ignore, coerce or stop at, in a file or in a config itself.

    Raises UsageError for an unknown reader, version or rule, ConfigError for an unreadable file.
    """

    from dslaunch.deepspeed.config_lint import LintContext, check_config
    from dslaunch.deepspeed.rules import rules
    from dslaunch.lint.suppression import check_rules

    if isinstance(config, str | os.PathLike):
        from dslaunch.lint.user_text import read_file

        text, name = read_file(Path(config)), str(config)
    else:
        text, name = json_literal(config, indent=2), "config"
    check_rules(ignore, rules().names)
    context = LintContext(
        reader=reader,
        version=version,
        script_args=None if script_args is None else tuple(script_args),
        world=world or (hardware.ranks if hardware else None),
        tensor=tensor,
        pipeline=pipeline,
        parameters=parameters,
        nodes=hardware.nodes if hardware else (),
        ignore=frozenset(ignore),
    )
    return check_config(text, name, context)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a training needs."""

    question: EstimateInput
    """What was asked: the model, the nodes, the config."""
    rows: tuple[Row, ...]
    """All ways to train, fastest first, with what each needs."""
    recommendation: Recommendation


def estimate(
    model: PathText | None = None,
    *,
    params: int | None = None,
    largest_layer: int | None = None,
    meta: bool = False,
    hardware: Hardware | None = None,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    gpu_memory: int | None = None,
    cpu_memory: int | None = None,
    nvme: int | None = None,
    headroom: float = 0.1,
    precision: Precision = "bf16",
    micro_batch: int = 1,
    sequence: int = 2048,
    attention: AttentionKind = "sdpa",
    accumulation: int = 1,
    reduce_bucket: int = 500_000_000,
    buffer_factor: float = 1.5,
    bandwidth: float | None = None,
    gpu_bandwidth: float | None = None,
) -> Estimate:
    """Estimate memory and traffic of every ZeRO stage and offload, and recommend the fastest.

    The model is a file, or `params` with `largest_layer`. Sizes are bytes, rates bytes per second.
    What is given comes before what the hardware has. Raises UsageError, ConfigError.
    """
    from dslaunch.deepspeed.activations import MicroBatch
    from dslaunch.deepspeed.communication import Bandwidth
    from dslaunch.deepspeed.estimate import EstimateInput, Limits, recommend
    from dslaunch.deepspeed.estimate import estimate as rows_of
    from dslaunch.deepspeed.memory import Machines, MemorySettings
    from dslaunch.run.hardware import Hardware

    if buffer_factor > MOST_FACTOR:
        raise UsageError(f"--buffer-factor: {buffer_factor:g} is more than {MOST_FACTOR}")
    known = hardware or Hardware()
    fewest_gpus = min((node.slots for node in known.nodes), default=1)
    machines = Machines(nodes or len(known.nodes) or 1, gpus_per_node or fewest_gpus)
    limits = Limits(
        gpu=gpu_memory or _least(node.gpu_memory for node in known.nodes),
        cpu=cpu_memory or _least(node.memory for node in known.nodes),
        nvme=nvme or known.nvme,
        headroom=headroom,
    )
    settings = MemorySettings(
        width=4 if precision == "fp32" else 2,
        reduce_bucket=reduce_bucket,
        factor=buffer_factor,
    )
    question = EstimateInput(
        sized=_sized(model, params, largest_layer, meta=meta),
        machines=machines,
        settings=settings,
        limits=limits,
        batch=MicroBatch(micro_batch, sequence, attention),
        accumulation=accumulation,
        bandwidth=Bandwidth(bandwidth or known.network, gpu_bandwidth),
    )
    rows = rows_of(question)
    return Estimate(question, rows, recommend(question, rows))


def _least(sizes: Iterable[int | None]) -> int | None:
    return min((size for size in sizes if size is not None), default=None)


def _sized(
    path: PathText | None, params: int | None, largest_layer: int | None, *, meta: bool
) -> Sized:
    from dslaunch.deepspeed.memory import Model
    from dslaunch.deepspeed.model_size import Sized, from_path, on_meta

    if path is not None:
        if params or largest_layer:
            raise UsageError("give a model's file, or --params and --largest-layer, not both")
        return on_meta(Path(path)) if meta else from_path(Path(path))
    if not params or not largest_layer:
        hint = "or name the model's config.json, safetensors file or index, or its directory"
        raise UsageError("--params and --largest-layer are needed", hint=hint)
    if largest_layer > params:
        raise UsageError("--largest-layer: one layer cannot have more than all --params")
    return Sized(Model(params, largest_layer), "--params and --largest-layer")
