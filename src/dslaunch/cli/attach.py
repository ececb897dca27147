"""`dslaunch attach`: follow a running job."""

from __future__ import annotations

from contextlib import closing

import typer
from msgspec.structs import replace

from dslaunch.cli import lookup, run_views, ui
from dslaunch.cli.json_option import JsonEvents
from dslaunch.cli.logs import Tail, line_count
from dslaunch.cli.run_views import parse_ranks
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.log_selection import LogSelection


def attach(
    run: lookup.RunName = lookup.LATEST,
    file: lookup.ClusterOfRun = None,
    tail: Tail = "20",
    ranks: run_views.Ranks = None,
    fold: run_views.Fold = None,
    json: JsonEvents = False,
) -> None:
    """Follow a running job until it ends.

    It begins with the last lines of output. Ctrl-C stops following; the run continues.

    Example: dslaunch attach latest
    """
    selection = LogSelection(ranks=parse_ranks(ranks), tail=line_count(tail))
    found = lookup.find(run, file)
    found.check(selection)
    # where SLURM manages the nodes, no node reports that it is connected
    by_slurm = found.record is not None and found.record.slurm is not None
    nodes = () if by_slurm else found.hosts
    view = run_views.make(
        nodes,
        json=json,
        ranks=selection.ranks,
        fold=fold,
        progress_formats=() if found.record is None else found.record.progress_patterns,
    )
    if found.record is not None:
        # a job may have waited in the queue since it was recorded
        started = None if by_slurm else found.record.started
        view.follow(found.record.world_size, started)
    with closing(view), Interrupts() as interrupts:
        attached = found.attach(view, view.tell, selection, until=lambda: interrupts.count > 0)
    outcome = attached.outcome
    if outcome is None:
        ui.say(f"run {found.name} continues; stop it with `dslaunch stop {found.name}`")
        raise typer.Exit(130)
    if attached.before:
        ui.say(f"run {found.name} has already ended: {outcome.message}")
        ui.say(f"hint: print its output with `dslaunch logs {found.name}`")
    else:
        # the run's own launcher, or SLURM, checks the cleanup
        view.outcome(replace(outcome, nodes_checked=False), attached.directory)
    raise typer.Exit(outcome.exit_code)
