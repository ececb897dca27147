"""`dslaunch attach`: watch a run that goes on."""

from __future__ import annotations

from typing import Annotated

import typer

from dslaunch.cli import lookup, run_views, ui


def attach(
    run: lookup.RunName,
    file: lookup.ClusterOfRun = None,
    ranks: run_views.Ranks = None,
    json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")] = False,
) -> None:
    """Watch a run that goes on, to its end. Ctrl-C leaves it alone.

    Example: dslaunch attach latest
    """
    found = lookup.find(run, file)
    wanted = lookup.ranks_of(found, ranks)
    view = run_views.make(found.hosts, json=json, ranks=wanted)
    attached = found.attach(view, ui.tell)
    outcome = attached.outcome
    if outcome is None:
        ui.say(f"run {found.name} continues; `dslaunch stop {found.name}` ends it")
        raise typer.Exit(130)
    if attached.before:
        ui.say(f"run {found.name} is over: {outcome.message}")
        ui.say(f"`dslaunch logs {found.name}` prints what it wrote")
    elif attached.directory is not None:
        view.outcome(outcome, attached.directory)
    else:
        ui.tell(outcome.message)
    raise typer.Exit(outcome.exit_code)
