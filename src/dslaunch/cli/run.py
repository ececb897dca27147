"""`dslaunch run`: start a training on every node, stream it, end cleanly."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import options, screens
from dslaunch.cli.options import Exclude, Include, Label, Launcher, Nodes, Setting, Slots, Words
from dslaunch.cli.words import JobOptions
from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dslaunch.cluster.model import Allocation, Cluster
    from dslaunch.cluster.select import Selection
    from dslaunch.launch.job import Job
    from dslaunch.report.live import JsonScreen, TerminalScreen
    from dslaunch.run.launch import Request
    from dslaunch.run.patience import Patience

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
    int, typer.Option(min=0, help="Start again so often after a failure or a lost node.")
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
    restarts: Restarts = 0,
    min_nodes: MinNodes = None,
    hang_timeout: HangTimeout = None,
    reconnect: Reconnect = 20.0,
    silence: Silence = 15.0,
) -> None:
    """Start a training on every node, stream it, end cleanly.

    Everything after the script is the script's own. Without a script the cluster file's `job:`
    is run.

    Example: dslaunch run cluster.yaml train.py --epochs 3
    """
    from dslaunch.run.launch import Request
    from dslaunch.run.patience import Patience

    how = JobOptions(module, no_python, launcher, tuple(env or ()))
    asked = options.read_job(words or [], how, workdir=workdir, slurm=slurm)
    if not dry_run:
        asked = replace(asked, cluster=options.reached(asked.cluster, transport, slurm=slurm))
    patience = _fitting(Patience(grace, exit_timeout, silence, reconnect, hang_timeout), asked)
    where = on_nodes(asked, options.selection(include, exclude, nodes, slots, label), detach=detach)
    request = Request(*where, not no_sync, patience, detach, not no_preflight, restarts, min_nodes)
    _start(request, dry_run, (json, quiet, screens.parse_ranks(ranks)))


def on_nodes(
    asked: options.Asked, chosen: Selection, *, detach: bool
) -> tuple[Cluster, Allocation, Job, Path, Mapping[str, str]]:
    """What runs where, from here. Raises SelectionError, UsageError."""
    from dslaunch.cluster.select import select

    cluster = asked.cluster
    if detach and cluster.transport == options.BY_STEPS:
        raise UsageError(
            "--detach: SLURM ends what a step of an allocation has started when the step ends",
            hint="`dslaunch slurm --detach` submits it as a job of its own; or reach the nodes "
            "by SSH: `--transport fabric`",
        )
    return cluster, select(cluster, chosen), asked.job, Path.cwd(), os.environ


def _fitting(patience: Patience, asked: options.Asked) -> Patience:
    """Without a time to come back where nobody would be there: SLURM ends what a step has started
    with the step."""
    if asked.cluster.transport != options.BY_STEPS:
        return patience
    return replace(patience, reconnect=0.0)


def _start(request: Request, dry_run: bool, show: tuple[bool, bool, frozenset[int] | None]) -> None:
    if dry_run:
        _print_plan(request)
    else:
        _run(request, show)


def _print_plan(request: Request) -> None:
    from dslaunch.cli import ui
    from dslaunch.launch.assume import assume
    from dslaunch.launch.plan import make_plan
    from dslaunch.render.dry_run import dry_run
    from dslaunch.run.launch import counted

    cluster, allocation = request.cluster, request.allocation
    decided = assume(cluster, allocation, str(request.cwd))
    plan = make_plan(allocation, counted(request, 0), decided, cluster=cluster.name)
    ui.result(dry_run(plan))


def _run(request: Request, show: tuple[bool, bool, frozenset[int] | None]) -> None:
    from dslaunch.run.launch import run_job

    json, quiet, ranks = show

    @cache
    def screen() -> JsonScreen | TerminalScreen:
        return screens.make(request.allocation.hosts, json=json, quiet=quiet, ranks=ranks)

    outcome, directory = run_job(request, screen)
    if outcome.goes_on:
        screen().detached(directory.name)
    else:
        screen().outcome(outcome, directory)
    raise typer.Exit(outcome.exit_code)
