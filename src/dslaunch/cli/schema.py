"""`dslaunch schema`: the JSON Schemas of the cluster file and of the record of a run."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from dslaunch.cli import ui


def schema(
    of: Annotated[
        Literal["cluster", "run"],
        typer.Argument(metavar="NAME", help="`cluster` (cluster file) or `run` (record of a run)."),
    ] = "cluster",
) -> None:
    """Print the JSON Schema of a file format.

    Example: dslaunch schema > cluster.schema.json
    """
    if of == "run":
        from dslaunch.run.run_record import json_schema
    else:
        from dslaunch.cluster.schema import json_schema
    ui.data(json_schema())
