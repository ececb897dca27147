"""`dslaunch rehearse`: start a job for a few steps, and say whether it would run."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from dslaunch.cli import interruption, options, run_views, script_options, ui
from dslaunch.cli.options import Words
from dslaunch.cli.run_options import (
    JobOptions,
    SelectionOptions,
    StartOptions,
    read_job,
    with_master_port,
)
from dslaunch.run.timeouts import DEFAULTS, REHEARSAL_DEFAULTS, Timeouts

if TYPE_CHECKING:
    from dslaunch.rehearsal.judge import Rehearsal
    from dslaunch.report.json_view import JsonView
    from dslaunch.report.live import TerminalView
    from dslaunch.run.rehearsal import RehearsalLimits
    from dslaunch.run.request import RunRequest

Steps = Annotated[
    int, typer.Option("--steps", metavar="N", min=1, max=1000, help="Optimizer steps to rehearse.")
]
TimeLimit = Annotated[
    float,
    options.seconds("Stop after this time.", "--time-limit", least=1),
]
FullNodes = Annotated[
    int | None,
    typer.Option(
        "--full-nodes",
        metavar="N",
        min=1,
        help="Nodes of the real run, for --nodes (default: all that are selected without it).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
CONTEXT = options.SCRIPT_LAST


def rehearse(
    *,
    words: Words = None,
    steps: Steps = 2,
    time_limit: TimeLimit = 600.0,
    which: SelectionOptions,
    full_nodes: FullNodes = None,
    how: JobOptions,
    start: StartOptions,
    hang_timeout: options.HangTimeout = REHEARSAL_DEFAULTS.hang_timeout,
    grace: options.Grace = DEFAULTS.grace,
    json: Json = False,
    file: options.ClusterOption = None,
) -> None:
    """Run a training job for a few steps and check it.

    The script runs on its nodes with all arguments, until all ranks have made some optimizer steps.
    Then the run is stopped, and a page says whether it would run, what is wrong and what was
    measured. Files that the script writes are named and not removed. With --nodes it is judged for
    all selected nodes.

    Example: dslaunch rehearse cluster.yaml train.py --epochs 3
    """
    from dslaunch.run.rehearsal import RehearsalLimits

    asked = read_job(words, how, command="rehearse", file=file, slurm=start.slurm)
    cluster = start.reached(with_master_port(asked.cluster, start.master_port))
    full = replace(which, nodes=full_nodes).of(cluster)
    allocation = replace(which, nodes=which.nodes or full_nodes).of(cluster)
    timeouts = Timeouts(grace=grace, hang_timeout=hang_timeout)
    request = start.request(cluster, asked.job, allocation, timeouts=timeouts)
    start.check_not_scheduled(cluster)
    script_options.tell_of_own_options(words or [], "rehearse", Path.cwd(), file=file)
    limits = RehearsalLimits(steps, time_limit, full if full != allocation else None)
    rehearsal = rehearsed(request, limits, quiet=json)
    if json:
        ui.data(rehearsal.as_data())
    else:
        ui.result(page(request, rehearsal), colors=True)
    raise typer.Exit(rehearsal.exit_code)


def rehearsed(request: RunRequest, limits: RehearsalLimits, *, quiet: bool = False) -> Rehearsal:
    """Rehearse a job, with the output of its ranks shown, and return the result."""
    from dslaunch.rehearsal.rehearse import rehearse as start

    interruption.leave_if_interrupted()
    at_exit = ExitStack()

    @cache
    def view() -> JsonView | TerminalView:
        made = run_views.make(
            request.allocation.hosts, json=False, quiet=quiet, ranks=None, fold=None
        )
        at_exit.callback(made.close)
        return made

    with at_exit:
        result, _ = start(request, limits, view)
    return result


def page(request: RunRequest, rehearsal: Rehearsal) -> str:
    """Return the page about a rehearsal."""
    from dslaunch.report import width
    from dslaunch.report.rehearsal import rehearsal_rows, stack_rows

    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    rows = rehearsal_rows(request.job.program, rehearsal, ui.width(), color=color)
    return "\n".join([*rows, *stack_rows(rehearsal, (ui.width() or width.USUAL) - 2)])
