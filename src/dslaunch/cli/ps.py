"""`dslaunch ps`: which runs there are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import ui
from dslaunch.cli.lookup import handles, reports_on
from dslaunch.cli.options import (
    DEFAULT_FILE,
    FILE_VARIABLE,
    ClusterFile,
    find_cluster,
    open_cluster,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dslaunch.run.handle import RunHandle
    from dslaunch.run.status import Reports, RunStatus


def ps(
    file: ClusterFile = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also those that are over.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List runs: those that the nodes know, and this machine's own.

    Example: dslaunch ps cluster.yaml --all
    """
    from dslaunch.report.status import RUNS_HEAD, run_row
    from dslaunch.run.local import local_runs

    local = local_runs(os.environ)
    own = handles(local.started)
    reports = _reports(file, own)
    found = [run.summary(reports) for run in own] + _of_other_machines(reports, own)
    shown = [status for status in found if everything or status.may_continue]
    if json:
        ui.data([status.as_dict() for status in shown])
    else:
        rows = [RUNS_HEAD, *map(run_row, shown)]
        none = "no runs" if everything else "no run goes on; --all lists those that are over"
        ui.result(ui.table(rows, ui.width()) if shown else none)
    for error in (*local.unreadable, *reports.unasked.values()):
        ui.say(error.message)
    for failure in reports.failures.values():
        ui.say(f"no answer from {failure.host}: {failure.message}")


def _reports(file: Path | None, own: Sequence[RunHandle]) -> Reports:
    """Ask the nodes of the given or default file, else of the runs that may not be over."""
    from dslaunch.run.status import ask_clusters

    if file is not None or os.environ.get(FILE_VARIABLE) or Path(DEFAULT_FILE).is_file():
        return ask_clusters([open_cluster(find_cluster(file))])
    return reports_on(own)


def _of_other_machines(reports: Reports, own: Sequence[RunHandle]) -> list[RunStatus]:
    """The runs that the nodes know and this machine does not."""
    known = {run.record.agents for run in own if run.record is not None}
    return [status for agents, status in reports.runs.items() if agents not in known]
