"""`dslaunch stacks`: what every rank of a run is doing."""

from __future__ import annotations

from typing import Annotated

import typer

from dslaunch.cli import lookup, slurm_runs, ui
from dslaunch.errors import NodeError


def stacks(
    run: lookup.Run,
    file: lookup.Cluster_ = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that a node may take.")] = 15.0,
    json: Annotated[bool, typer.Option("--json", help="Print all stacks as JSON.")] = False,
) -> None:
    """Show what every rank is doing, the odd ones out first.

    Equal stacks are shown as one.

    Example: dslaunch stacks latest
    """
    import json as jsonlib

    from dslaunch.report.stacks import fold, page
    from dslaunch.run.follow import nothing_reached
    from dslaunch.run.reach import reach
    from dslaunch.run.supervisor import gather_stacks

    found = lookup.find(run, file)
    if found.local is not None and slurm_runs.is_slurm(found.local):
        raise slurm_runs.no_stacks(found.local)
    with reach(found.cluster, found.nodes, found.agents) as reached:
        if not reached.sessions:
            raise nothing_reached(reached, found.run)
        told = gather_stacks(list(reached.sessions.values()), timeout)
        missing = tuple(f for f in reached.failures.values() if f.kind != "no-agent")
        silent = [host for host in reached.sessions if host not in told]
    ui.result(jsonlib.dumps(told, indent=2) if json else page(fold(told), ui.width()))
    if silent:
        ui.say(f"no answer from {', '.join(silent)}")
    if missing:
        raise NodeError(missing)
