"""`dslaunch stop`: end a run on all its nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from dslaunch.cli import lookup, ui
from dslaunch.errors import NodeError


def stop(
    run: lookup.RunName,
    file: lookup.ClusterOfRun = None,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds between asking a rank to end and killing it (default: 10; of a SLURM "
            "job as the site has it, KillWait).",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """End a run on all its nodes, from wherever they can be reached.

    Example: dslaunch stop latest --grace 30
    """
    found = lookup.find(run, file)
    stopped = found.stop(grace, lookup.caller())
    text = f"run {found.name} has ended on {', '.join(stopped.ended) or 'no node'}"
    if stopped.job is not None:
        text = f"job {stopped.job} of run {found.name} is canceled"
    data = {
        "run": found.name,
        "job": stopped.job,
        "ended": stopped.ended,
        "not_confirmed": stopped.unconfirmed,
    }
    if json:
        ui.data(data, indent=None)
    else:
        ui.result(text)
    if stopped.failures:
        raise NodeError(stopped.failures)
    if stopped.unconfirmed:
        ui.say(f"not confirmed on {', '.join(stopped.unconfirmed)}: try `dslaunch clean`")
        raise typer.Exit(5)
