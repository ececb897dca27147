"""`dslaunch validate`: every problem of a cluster file at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dslaunch.cli import ui
from dslaunch.cli.options import ClusterFile, open_cluster

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster


def validate(
    file: ClusterFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Check a cluster file; print every problem with its place.

    Example: dslaunch validate cluster.yaml
    """
    import json as jsonlib
    from dataclasses import asdict

    from dslaunch.errors import ConfigError

    try:
        counts = count(open_cluster(file))
    except ConfigError as error:
        if not json:
            raise
        problems = [asdict(problem) for problem in error.problems]
        ui.result(jsonlib.dumps({"problems": problems}, indent=2))
        raise typer.Exit(error.exit_code) from None
    ui.result(jsonlib.dumps({**counts, "problems": []}, indent=2) if json else in_words(counts))


def count(cluster: Cluster) -> dict[str, Any]:
    """The cluster's name and how much there is of it; spares and their slots are not working."""
    working = [node for node in cluster.nodes if not node.spare]
    return {
        "name": cluster.name,
        "nodes": len(working),
        "slots": sum(len(node.slots) for node in working),
        "spares": len(cluster.nodes) - len(working),
    }


def in_words(counts: dict[str, Any]) -> str:
    """As `pod-a: 6 nodes, 44 slots, 1 spare`."""
    things = [(counts[noun], noun) for noun in ("nodes", "slots", "spares")]
    words = [
        f"{number} {noun.removesuffix('s') if number == 1 else noun}"
        for number, noun in things
        if number or noun != "spares"
    ]
    return f"{counts['name']}: {', '.join(words)}"
