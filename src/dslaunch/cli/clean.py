"""`dslaunch clean`: end and remove what dead runs have left on nodes."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated, Any

import typer

from dslaunch.cli import ui
from dslaunch.cli.options import ClusterFile, find_cluster, open_cluster
from dslaunch.errors import NodeError


def clean(
    file: ClusterFile = None,
    run: Annotated[str | None, typer.Option(help="Only of this run.")] = None,
    ended: Annotated[
        bool, typer.Option("--ended", help="Also what ended detached runs have kept: their logs.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """End and remove what runs have left on nodes that were away.

    Runs that go on are not touched.

    Example: dslaunch clean cluster.yaml
    """
    from dslaunch.run.reach import ask, reach

    cluster = open_cluster(find_cluster(file))
    with reach(cluster, cluster.nodes) as reached:
        answers = ask(reached, clean={"run": run, "ended": ended})
        failures = tuple(reached.failures.values())
    done: dict[str, Any] = {
        host: a["clean"].get("value", a["clean"]) for host, a in answers.items()
    }
    if json:
        ui.result(jsonlib.dumps(done, indent=2))
    else:
        ui.result("\n".join(words(host, what) for host, what in done.items()) or "nobody answered")
    if failures:
        raise NodeError(failures)


def words(host: str, what: dict[str, Any]) -> str:
    """What was done on one node."""
    if "error" in what:
        return f"{host}: {what['error']}"
    killed = f"{len(what['killed'])} processes ended" if what["killed"] else ""
    runs = f"removed {', '.join(what['removed'])}" if what["removed"] else ""
    return f"{host}: {', '.join(filter(None, (killed, runs))) or 'nothing to do'}"
