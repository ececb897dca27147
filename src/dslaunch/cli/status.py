"""`dslaunch status`: the state of a run per node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.cli import lookup, ui
from dslaunch.cli.json_option import JsonObject
from dslaunch.report.status import head, job_rows, node_rows, why_rows

if TYPE_CHECKING:
    from dslaunch.run.status import RunStatus


def status(
    run: lookup.RunName = lookup.LATEST,
    file: lookup.ClusterOfRun = None,
    json: JsonObject = False,
) -> None:
    """Show the state of a run per node, and why it failed.

    Example: dslaunch status latest
    """
    found = lookup.find(run, file).status()
    if json:
        ui.data(found.as_data())
    else:
        ui.result(page(found))


def page(found: RunStatus) -> str:
    """Return the run, its nodes or jobs, and why it failed, as text."""
    tables = [ui.table(rows, ui.width()) for rows in (node_rows(found), job_rows(found)) if rows]
    return "\n".join([head(found, ui.width()), *tables, *why_rows(found, ui.width())])
