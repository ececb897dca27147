"""`dslaunch run`: start a training on every node, stream it, end cleanly."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from dslaunch.cli import options
from dslaunch.cli.options import Exclude, Include, Label, Launcher, Nodes, Setting, Slots, Words
from dslaunch.cluster.model import Allocation
from dslaunch.errors import UsageError

Ranks = Annotated[
    str | None, typer.Option(help="Show only these ranks' output, such as 0 or 0-3,8.")
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
    no_sync: Annotated[
        bool, typer.Option("--no-sync", help="Ship nothing: refuse if the code differs.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan, ask no node, start nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show only how it failed.")] = False,
    ranks: Ranks = None,
    json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")] = False,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds between asking a rank to end and killing it.")
    ] = 10.0,
    exit_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that ranks may outlive the first good end.")
    ] = 300.0,
) -> None:
    """Start a training on every node, stream it, end cleanly.

    Everything after the script is the script's own. Without a script the cluster file's `job:`
    is run.

    Example: dslaunch run cluster.yaml train.py --epochs 3
    """
    from dslaunch.cluster.select import select

    asked = options.read_job(
        words or [], module=module, no_python=no_python, launcher=launcher, env=env, workdir=workdir
    )
    allocation = select(asked.cluster, options.selection(include, exclude, nodes, slots, label))
    if dry_run:
        _print_plan(asked, allocation)
        return
    shown = parse_ranks(ranks)
    _run(asked, allocation, not no_sync, (grace, exit_timeout), (json, quiet, shown))


def parse_ranks(text: str | None) -> frozenset[int] | None:
    """Read `0-3,8` as a set of ranks. Raises UsageError."""
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise UsageError(
                f"--ranks: {part!r} is no rank", hint="write for example --ranks 0-3,8"
            )
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _print_plan(asked: options.Asked, allocation: Allocation) -> None:
    from dslaunch.cli import ui
    from dslaunch.launch.assume import assume
    from dslaunch.launch.plan import make_plan
    from dslaunch.render.dry_run import dry_run

    decided = assume(asked.cluster, allocation, str(Path.cwd()))
    ui.result(dry_run(make_plan(allocation, asked.job, decided, cluster=asked.cluster.name)))


def _run(
    asked: options.Asked,
    allocation: Allocation,
    sync: bool,
    times: tuple[float, float],
    show: tuple[bool, bool, frozenset[int] | None],
) -> None:
    from dslaunch.report.live import JsonScreen, TerminalScreen
    from dslaunch.run.launch import Request, run_job
    from dslaunch.run.supervisor import Patience

    json, quiet, ranks = show
    screen = (
        JsonScreen(sys.stdout)
        if json
        else TerminalScreen(
            sys.stdout,
            sys.stderr,
            nodes=allocation.hosts,
            ranks=ranks,
            quiet=quiet,
            colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
            width=shutil.get_terminal_size().columns,
        )
    )
    patience = Patience(grace=times[0], exit_timeout=times[1])
    request = Request(asked.cluster, allocation, asked.job, Path.cwd(), os.environ, sync, patience)
    outcome, directory = run_job(request, screen)
    screen.outcome(outcome, directory)
    raise typer.Exit(outcome.exit_code)
