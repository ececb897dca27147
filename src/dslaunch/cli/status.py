"""`dslaunch status`: how a run stands, node by node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import lookup, ui

if TYPE_CHECKING:
    from dslaunch.run.status import RunStatus


def status(
    run: lookup.RunName,
    file: lookup.ClusterOfRun = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Say how a run stands, node by node, and why it failed.

    Example: dslaunch status latest
    """
    found = lookup.find(run, file).status()
    if json:
        ui.data(found.as_dict())
    else:
        ui.result(page(found))


def page(found: RunStatus) -> str:
    """The run, its nodes or jobs, and why it failed."""
    from dslaunch.report.status import head, job_rows, node_rows, why_rows

    tables = [ui.table(rows, ui.width()) for rows in (node_rows(found), job_rows(found)) if rows]
    return "\n".join([head(found), *tables, *why_rows(found)])
