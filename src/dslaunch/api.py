"""The public Python API; `dslaunch` offers the names, docs/reference/api.md documents them.

The command line uses it too. Nothing here prints, reads options or keeps state between calls.
What is imported is imported by the function that needs it, since each takes another part.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dslaunch.errors import PlanError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from signal import Signals
    from types import TracebackType

    from dslaunch.cluster.model import Allocation, Cluster
    from dslaunch.deepspeed.estimate import EstimateInput, Recommendation, Row
    from dslaunch.deepspeed.model_size import Sized
    from dslaunch.launch.job import Job
    from dslaunch.launch.plan import Decided, Plan
    from dslaunch.lint import Screened
    from dslaunch.preflight.check import Tier
    from dslaunch.preflight.judge import Report
    from dslaunch.render.launch import Rendered
    from dslaunch.run.events import Event, Line
    from dslaunch.run.hardware import Hardware
    from dslaunch.run.outcome import Outcome
    from dslaunch.run.preflight_survey import Tell
    from dslaunch.run.request import RunRequest
    from dslaunch.run.status import RunStatus
    from dslaunch.run.timeouts import Timeouts

Precision = Literal["bf16", "fp16", "fp32"]
AttentionKind = Literal["sdpa", "eager"]
PathText = str | os.PathLike[str]
MOST_FACTOR = 1000


def _ignore(*values: object) -> None:
    """Do nothing with what is reported."""


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


# ---------------------------------------------------------------- plan and render


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
    from dslaunch.run.request import counted

    decided = assume(request.cluster, request.allocation, str(request.cwd))
    job = counted(request, 0)
    return make_plan(request.allocation, job, decided, cluster=request.cluster.name)


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
    rendered = formats.render(name, launch)
    assumed = (each for each in decided.decisions if each.assumed)
    told = tuple(each for each in assumed if _is_in(rendered.text, each.value))
    return replace(rendered, decisions=told)


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


def _is_in(text: str, value: str) -> bool:
    """Return whether a decision has a part in the text; address and port may stand apart in it."""
    address, _, port = value.rpartition(":")
    return value in text or (bool(address) and address in text and port in text)


# ---------------------------------------------------------------- preflight


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
    on_progress: Tell = _ignore,
) -> Report:
    """Ask the nodes whether they are fit to train on, and return the findings.

    Without an allocation spares are asked too; without a job that of the cluster file counts. Nodes
    that do not answer are findings. Raises UsageError.
    """
    from dslaunch.launch.job import Job
    from dslaunch.preflight.check_selection import CheckSelection, tier_of
    from dslaunch.preflight.check_selection import purposes as known_purposes
    from dslaunch.preflight.judge import judge
    from dslaunch.run.preflight_survey import ask_nodes, preflight_scope

    if job is None:
        job = Job.on(cluster) if has_job(cluster) else Job.on(cluster, "")
    wanted = CheckSelection(
        tier=tier_of(tier),
        only=_several("only", only),
        skip=_several("skip", skip),
        purposes=known_purposes(_several("purposes", purposes)),
    )
    scope, checks = preflight_scope(cluster, allocation, job, wanted, _directory(cwd))
    return judge(ask_nodes(scope, checks, tier, on_progress), checks)


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
    from dslaunch.run.timeouts import Timeouts

    if detached and cluster.by_steps:
        raise UsageError(
            "--detach: SLURM ends what a step of an allocation has started when the step ends",
            hint="`dslaunch slurm --detach` submits it as a job of its own; or reach the nodes "
            "by SSH: `--transport fabric`",
        )
    directory = _directory(cwd)
    allocation = allocation or select(cluster)
    check_min_nodes(min_nodes, allocation)
    timeouts = timeouts or Timeouts()
    if cluster.by_steps:
        # SLURM ends what a step has started with the step: nobody would be there to come back to
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
    """Return how often to restart where nobody says it."""
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
    grace: float = 10.0,
    exit_timeout: float = 300.0,
    heartbeat_timeout: float = 15.0,
    reconnect_timeout: float = 20.0,
    hang_timeout: float | None = None,
    on_line: Callable[[Line], object] = _ignore,
    on_event: Callable[[Event], object] = _ignore,
) -> Run:
    """Start a job on its nodes, and return when it is planned and recorded.

    The run goes on in a thread of this process; no signal is caught. `on_line` and `on_event` are
    called in that thread. Raises the DslaunchError that prevents the start.
    """
    from dslaunch.run.timeouts import Timeouts

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
    started = Run(request, _Callbacks(on_line, on_event))
    started._wait_for_plan()
    return started


class _Callbacks:
    """Shows a run to a program."""

    unseen = False

    def __init__(
        self, on_line: Callable[[Line], object], on_event: Callable[[Event], object]
    ) -> None:
        import threading

        self._on_line, self._on_event = on_line, on_event
        self.planned = threading.Event()
        self.latest: tuple[Plan, Path] | None = None

    def line(self, line: Line) -> None:
        self._on_line(line)

    def event(self, event: Event) -> None:
        self._on_event(event)

    def plan(self, plan: Plan, directory: Path) -> None:
        self.latest = plan, directory
        self.planned.set()


class Run:
    """A run that this process has started. As a context manager it does not outlive the block."""

    def __init__(self, request: RunRequest, view: _Callbacks) -> None:
        from concurrent.futures import ThreadPoolExecutor

        from dslaunch.run.interrupts import Interrupts
        from dslaunch.run.launch import run_job

        self._environ = request.environ
        self._view = view
        self._interrupts = Interrupts()
        # Python waits for the thread when the program ends, so that no training is cut off
        pool = ThreadPoolExecutor(1, thread_name_prefix="dslaunch-run")
        self._ended = pool.submit(run_job, request, lambda: view, self._interrupts)
        self._ended.add_done_callback(lambda _: view.planned.set())
        pool.shutdown(wait=False)

    def _wait_for_plan(self) -> None:
        """Wait until it is planned. Raises the error that prevents the start."""
        try:
            self._view.planned.wait()
        except BaseException:  # such as a notebook's interrupt
            self.stop()
            raise
        if self._view.latest is None:
            self._ended.result()

    @property
    def plan(self) -> Plan:
        """What its nodes do; after a restart that of the latest attempt."""
        return self._known[0]

    @property
    def directory(self) -> Path:
        """Where it is recorded."""
        return self._known[1]

    @property
    def name(self) -> str:
        """Its name, as `dslaunch status` takes it."""
        return self.directory.name

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._ended.done()

    def wait(self, timeout: float | None = None) -> Outcome:
        """Wait for its end, and return how it ended.

        Raises TimeoutError after `timeout` seconds, and the run goes on; the DslaunchError that
        prevented the start of its ranks.
        """
        outcome, _ = self._ended.result(timeout)
        return outcome

    def stop(self) -> None:
        """Ask all ranks to end, and return at once. A second call kills those that have not."""
        self._interrupts.stop()

    def status(self) -> RunStatus:
        """Return how it stands; while it goes on, its nodes are asked. Raises DslaunchError."""
        from dslaunch.run.local import local_runs
        from dslaunch.run.ssh_run import SshRun
        from dslaunch.run.status import Reports

        recorded = local_runs(self._environ).exactly(self.name)
        if recorded is None:
            raise UsageError(f"{self.directory}: the record of the run is not there any more")
        handle = SshRun.recorded(recorded)
        return handle.summary(Reports()) if self.done else handle.status()

    def logs(self, *, ranks: Collection[int] | None = None, follow: bool = False) -> Iterator[Line]:
        """Yield what its ranks have written, by time; with `follow` by arrival, until its end."""
        from dslaunch.run.follow import recorded
        from dslaunch.run.watch import Watch

        lines: list[Line] = []
        watch = Watch(_Callbacks(lines.append, _ignore))
        for host, output in recorded(self.directory, follow=follow):
            watch.output(host, output, 0.0)
            yield from _of_ranks(lines, ranks)
            lines.clear()
        watch.flush_all()
        yield from _of_ranks(lines, ranks)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.done:
            self.stop()
        self._ended.exception()

    @property
    def _known(self) -> tuple[Plan, Path]:
        assert self._view.latest is not None  # `run` returns no other
        return self._view.latest


def _of_ranks(lines: Sequence[Line], ranks: Collection[int] | None) -> list[Line]:
    return [line for line in lines if ranks is None or line.rank in ranks]


# ---------------------------------------------------------------- DeepSpeed


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
    import json

    from dslaunch.deepspeed.config_lint import LintContext, check_config
    from dslaunch.deepspeed.rules import rules
    from dslaunch.lint.suppression import check_rules

    if isinstance(config, str | os.PathLike):
        from dslaunch.lint.user_text import read_file

        text, name = read_file(Path(config)), str(config)
    else:
        text, name = json.dumps(config, indent=2), "config"
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
    Raises UsageError, ConfigError.
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
    slots = [node.slots for node in known.nodes]
    machines = Machines(nodes or 1, gpus_per_node or 1)
    if slots:
        machines = Machines(len(slots), min(slots))
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
