"""`dslaunch validate`: every problem of a cluster file at once."""

from __future__ import annotations

from typing import Annotated

import typer

from dslaunch.cli import ui
from dslaunch.cli.options import ClusterFile, open_cluster


def validate(
    file: ClusterFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print problems as JSON.")] = False,
) -> None:
    """Check a cluster file; print every problem with its place.

    Example: dslaunch validate cluster.yaml
    """
    import json as jsonlib
    from dataclasses import asdict

    from dslaunch.errors import ConfigError

    try:
        cluster = open_cluster(file)
    except ConfigError as error:
        if not json:
            raise
        ui.result(jsonlib.dumps([asdict(problem) for problem in error.problems], indent=2))
        raise typer.Exit(error.exit_code) from None
    if json:
        ui.result("[]")
        return
    spares = sum(node.spare for node in cluster.nodes)
    working = [node for node in cluster.nodes if not node.spare]
    counts = [
        (len(working), "node"),
        (sum(len(n.slots) for n in working), "slot"),
        (spares, "spare"),
    ]
    words = [f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts if n or what != "spare"]
    ui.result(f"{cluster.name}: {', '.join(words)}")
