"""`dslaunch stop`: stop a run on all its nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from dslaunch.cli import lookup, options, ui
from dslaunch.cli.json_option import JsonObject
from dslaunch.errors import NodeError


def stop(
    run: lookup.RunName = lookup.LATEST,
    file: lookup.ClusterOfRun = None,
    grace: Annotated[
        float | None,
        options.seconds(
            "Time between SIGTERM and SIGKILL for a rank (default: 10; for a SLURM job: "
            "KillWait of the site).",
            least=0,
        ),
    ] = None,
    json: JsonObject = False,
) -> None:
    """Stop a run on all its nodes.

    Works on any machine that reaches the nodes.

    Example: dslaunch stop latest --grace 30
    """
    from dslaunch.cluster.nodeset import fold
    from dslaunch.report.outcome_rows import cleanup_text

    found = lookup.find(run, file)
    stopped = found.stop(grace)
    text = f"stopped run {found.name} on {fold(stopped.ended) or 'no node'}"
    if stopped.job is not None:
        text = f"canceled job {stopped.job} of run {found.name}"
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
        ui.say(cleanup_text(stopped.unconfirmed))
        raise typer.Exit(5)
