"""`dslaunch run`: start a training on every node, stream it, end cleanly."""

from __future__ import annotations

import json as jsonlib
import os
import signal
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dslaunch.cli import arguments, options, screens, ui
from dslaunch.cli.options import Exclude, Include, Label, Launcher, Nodes, Setting, Slots, Words
from dslaunch.cli.words import JobOptions
from dslaunch.errors import DslaunchError, Interrupted, PlanError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dslaunch.cluster.model import Allocation, Cluster
    from dslaunch.cluster.select import Selection
    from dslaunch.launch.job import Job
    from dslaunch.report.live import JsonView, TerminalView
    from dslaunch.run.outcome import Outcome, Status
    from dslaunch.run.request import RunRequest
    from dslaunch.run.timeouts import Timeouts

NoSync = Annotated[
    bool, typer.Option("--no-sync", help="Ship nothing: refuse if the code differs.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan, ask no node, start nothing.")
]
NoPreflight = Annotated[
    bool, typer.Option("--no-preflight", help="Leave out the quick checks of the nodes.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show only how it failed.")]
Json = Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")]
Grace = Annotated[
    float, typer.Option(min=0, help="Seconds between asking a rank to end and killing it.")
]
ExitTimeout = Annotated[
    float, typer.Option(min=0, help="Seconds that ranks may outlive the first good end.")
]
Detach = Annotated[
    bool, typer.Option("--detach", "-d", help="Start it and leave; the nodes hold together.")
]
Restarts = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Restart up to N times after a failure or a lost node; default: 0, and with `elastic` "
        "and --min-nodes as often as it takes to go on with so few.",
    ),
]
Result = Annotated[
    Path | None,
    typer.Option("--result", help="Write how the run ended to this file, as JSON."),
]
Notice = Annotated[
    Literal["USR1", "USR2"] | None,
    typer.Option("--notice", help="Hand this signal to the ranks, such as before a time limit."),
]
Requeue = Annotated[
    int,
    typer.Option(
        "--requeue",
        min=0,
        help="In a SLURM job whose nodes failed: requeue it without them, up to N times.",
    ),
]
MinNodes = Annotated[
    int | None,
    typer.Option(min=1, help="Go on with so few nodes; default: not with fewer."),
]
HangTimeout = Annotated[
    float | None,
    typer.Option(min=1, help="End it when no rank printed or computed for so many seconds."),
]
Reconnect = Annotated[
    float, typer.Option(min=0, help="Seconds in which a lost connection may come back.")
]
Silence = Annotated[
    float, typer.Option(min=1, help="Seconds without a sign after which it counts as lost.")
]
CONTEXT = options.SCRIPT_LAST


def run(
    words: Words = None,
    include: Include = "",
    exclude: Exclude = "",
    nodes: Nodes = None,
    slots: Slots = None,
    label: Label = None,
    module: options.Module = False,
    no_python: options.NoPython = False,
    launcher: Launcher = None,
    env: Setting = None,
    workdir: options.Workdir = None,
    slurm: options.Allocated = False,
    transport: options.Way = None,
    no_sync: NoSync = False,
    no_preflight: NoPreflight = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    ranks: screens.Ranks = None,
    json: Json = False,
    grace: Grace = 10.0,
    exit_timeout: ExitTimeout = 300.0,
    detach: Detach = False,
    restarts: Restarts = None,
    min_nodes: MinNodes = None,
    hang_timeout: HangTimeout = None,
    reconnect: Reconnect = 20.0,
    silence: Silence = 15.0,
    notice: Notice = None,
    result: Result = None,
    requeue: Requeue = 0,
    force: options.Force = False,
) -> None:
    """Start a training on every node, stream it, end cleanly.

    Everything after the script is the script's own. Without a script the cluster file's `job:`
    is run.

    Example: dslaunch run cluster.yaml train.py --epochs 3
    """
    from dslaunch.run.request import RunRequest
    from dslaunch.run.timeouts import Timeouts

    how = JobOptions(module, no_python, launcher, tuple(env or ()))
    asked = options.read_job(words or [], how, workdir=workdir, slurm=slurm)
    if not dry_run:
        asked = replace(asked, cluster=options.reached(asked.cluster, transport, slurm=slurm))
    timeouts = _fitting(Timeouts(grace, exit_timeout, silence, reconnect, hang_timeout), asked)
    chosen = options.selection(include, exclude, nodes, slots, label)
    where = on_nodes(asked, chosen, detach=detach, min_nodes=min_nodes)
    request = RunRequest(
        *where,
        not no_sync,
        timeouts,
        detach,
        not no_preflight,
        _restarts(where[2], where[1], restarts, min_nodes),
        min_nodes,
        force,
        signal.Signals[f"SIG{notice}"] if notice else None,
    )
    shown = screens.existing_ranks(ranks, request.allocation.world_size)
    if not dry_run:
        if not (force or slurm or transport):
            check_not_scheduled(asked.cluster, os.environ)
        arguments.tell_of_own_options(words or [], "run", Path.cwd())
    options.check_writable("--result", result)
    if dry_run:
        _print_plan(request)
        return
    end = End(result, requeue)
    try:
        _run(request, (json, quiet, shown), end)
    except DslaunchError as error:
        outcome = end.not_started(error)
        if json:
            ui.result(jsonlib.dumps({"kind": "outcome"} | outcome.as_dict()))
        raise


def on_nodes(
    asked: options.Asked, chosen: Selection, *, detach: bool, min_nodes: int | None = None
) -> tuple[Cluster, Allocation, Job, Path, Mapping[str, str]]:
    """What runs where, from here. Raises SelectionError, UsageError."""
    from dslaunch.cluster.select import check_min_nodes, select

    cluster = asked.cluster
    if detach and cluster.by_steps:
        raise UsageError(
            "--detach: SLURM ends what a step of an allocation has started when the step ends",
            hint="`dslaunch slurm --detach` submits it as a job of its own; or reach the nodes "
            "by SSH: `--transport fabric`",
        )
    allocation = select(cluster, chosen)
    check_min_nodes(min_nodes, allocation)
    return cluster, allocation, asked.job, Path.cwd(), os.environ


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


def _fitting(timeouts: Timeouts, asked: options.Asked) -> Timeouts:
    """Without a time to come back where nobody would be there: SLURM ends what a step has started
    with the step."""
    if not asked.cluster.by_steps:
        return timeouts
    return replace(timeouts, reconnect=0.0)


def _restarts(job: Job, allocation: Allocation, given: int | None, least: int | None) -> int:
    """How often to restart where the command line does not say it."""
    from dslaunch.registry import LAUNCHERS

    if given is not None or least is None:
        return given or 0
    launcher = LAUNCHERS.get(job.launcher)
    return launcher.default_restarts(len(allocation.placements), least)


@dataclass(frozen=True, slots=True)
class End:
    """What becomes of a run's outcome beside what is shown of it."""

    result: Path | None
    requeue: int

    def after(self, outcome: Outcome, directory: Path) -> None:
        """Write the result; requeue the job if its nodes failed."""
        self._write(outcome, directory)
        if outcome.faulty and self.requeue and not outcome.goes_on:
            from dslaunch.slurm.client import here
            from dslaunch.slurm.requeue import requeue_without

            requeue_without(
                client=here(),
                nodes=outcome.faulty,
                most=self.requeue,
                say=lambda words: ui.say(f"dslaunch: {words}"),
            )

    def not_started(self, error: DslaunchError) -> Outcome:
        """Write and return why nothing was started."""
        from dslaunch.run.outcome import Outcome
        from dslaunch.run.reasons import EndCode, EndReason

        status: Status = "interrupted" if isinstance(error, Interrupted) else "failed"
        reason = EndReason(EndCode.NOT_STARTED, problem=error.error_code, error=error.message)
        outcome = Outcome(status, error.exit_code, reason, hint=error.hint)
        self._write(outcome, None)
        return outcome

    def _write(self, outcome: Outcome, directory: Path | None) -> None:
        if self.result is None:
            return
        from dslaunch.run.run_directory import write_private
        from dslaunch.slurm.job_files import of_job

        run = {"run": directory.name, "directory": str(directory)} if directory else {}
        text = jsonlib.dumps(outcome.as_dict() | run | of_job(os.environ), indent=2) + "\n"
        try:
            write_private(self.result, text)
        except OSError as error:
            ui.say(f"dslaunch: --result {self.result}: {error.strerror}")


def _print_plan(request: RunRequest) -> None:
    from dslaunch.launch.assume import assume
    from dslaunch.launch.planner import make_plan
    from dslaunch.render.dry_run import dry_run
    from dslaunch.run.request import counted

    cluster, allocation = request.cluster, request.allocation
    decided = assume(cluster, allocation, str(request.cwd))
    plan = make_plan(allocation, counted(request, 0), decided, cluster=cluster.name)
    ui.result(dry_run(plan))


def _run(request: RunRequest, show: tuple[bool, bool, frozenset[int] | None], end: End) -> None:
    from dslaunch.run.launch import run_job

    json, quiet, ranks = show

    @cache
    def screen() -> JsonView | TerminalView:
        return screens.make(request.allocation.hosts, json=json, quiet=quiet, ranks=ranks)

    outcome, directory = run_job(request, screen)
    if outcome.goes_on:
        screen().detached(directory.name)
    else:
        screen().outcome(outcome, directory)
    end.after(outcome, directory)
    raise typer.Exit(outcome.exit_code)
