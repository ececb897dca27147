"""`dslaunch diff`: what differs between two runs."""

from __future__ import annotations

from typing import Annotated

import typer

from dslaunch import api
from dslaunch.cli import ui
from dslaunch.cli.json_option import JsonObject

DIFFERENT = 1
"""The exit code of runs that differ, as of diff(1)."""


def diff(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="Name of a run, the start of it, or latest~1 for the run before the latest.",
        ),
    ] = None,
    other: Annotated[
        str | None, typer.Argument(metavar="RUN", help="The run to compare it with.")
    ] = None,
    json: JsonObject = False,
) -> None:
    """Show what differs between two runs.

    Compares arguments, code, environment, DeepSpeed config, versions, nodes, cluster file and
    decisions. One run is compared with the last successful run of the same script before it; the
    default is the latest run. Exit code 1 if the runs differ.

    Example: dslaunch diff latest~1 latest
    """
    from dslaunch.report.run_diff import comparison_text

    first, second = (run, other) if other is not None else (None, run)
    found = api.compare_runs(first, second or "latest")
    if json:
        ui.data(found.as_data())
    else:
        ui.result(comparison_text(found))
    if not found.is_equal:
        raise typer.Exit(DIFFERENT)
