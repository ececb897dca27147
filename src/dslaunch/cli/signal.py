"""`dslaunch signal`: send a signal to the ranks of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from dslaunch.cli import lookup, ui
from dslaunch.cli.json_option import JsonObject
from dslaunch.cluster.nodeset import fold_numbers
from dslaunch.errors import NodeError
from dslaunch.plural import counted


def signal(
    run: lookup.RunName,
    signal_name: Annotated[
        str,
        typer.Argument(
            metavar="SIGNAL", help="USR1, USR2, HUP, INT, TERM, CONT or WINCH, also as SIGUSR1."
        ),
    ],
    file: lookup.ClusterOfRun = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            "--ranks", "-r", metavar="RANKS", help="Only these ranks, for example 0 or 0-3,8."
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also send it to ranks without a handler, which it ends."),
    ] = False,
    json: JsonObject = False,
) -> None:
    """Send a signal such as USR1 to the ranks of a run.

    The ranks' own processes get it, not their launchers. Nothing is sent if it would end a rank
    that has no handler for it.

    Example: dslaunch signal latest USR1
    """
    found = lookup.find(run, file)
    signaled = found.signal(signal_name, ranks=lookup.ranks_of(found, ranks), force=force)
    if json:
        data = {"run": found.name, "signal": signaled.signal, "ranks": signaled.ranks}
        ui.data(data | {"unresponsive": signaled.unresponsive}, indent=None)
    else:
        count = counted(len(signaled.ranks), "rank")
        ui.result(f"sent SIG{signaled.signal} to {count}: {fold_numbers(signaled.ranks)}")
    if signaled.failures:
        raise NodeError(signaled.failures)
    if signaled.unresponsive:
        ui.say(f"not confirmed by {', '.join(signaled.unresponsive)}")
        raise typer.Exit(5)
