"""`dslaunch stop`: end a run on all its nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from dslaunch.cli import lookup, slurm_runs, ui
from dslaunch.errors import NodeError, UsageError

GRACE = 10.0


def stop(
    run: lookup.Run,
    file: lookup.Cluster_ = None,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds between asking a rank to end and killing it (default: 10; of a SLURM "
            "job as the site has it, KillWait).",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """End a run on all its nodes, from wherever they can be reached.

    Example: dslaunch stop latest --grace 30
    """
    import json as jsonlib

    from dslaunch.run.follow import nothing_reached
    from dslaunch.run.reach import reach
    from dslaunch.run.restart import end_all

    found = lookup.find(run, file)
    if found.local is not None and slurm_runs.is_slurm(found.local):
        if slurm_runs.is_part(run):
            raise UsageError(
                f"{run} is a part of run {found.run}",
                hint=f"`scancel {run}` ends it alone, `dslaunch stop {found.run}` the whole run",
            )
        number = slurm_runs.stop(found.local, grace)
        said = {"run": found.run, "job": number}
        ui.result(jsonlib.dumps(said) if json else f"job {number} of run {found.run} is canceled")
        return
    with reach(found.cluster, found.nodes, found.agents) as reached:
        if not reached.sessions:
            raise nothing_reached(reached, found.run)
        stayed = end_all(reached, GRACE if grace is None else grace, lookup.caller())
        ended = [host for host in reached.sessions if host not in stayed]
        words = f"run {found.run} has ended on {', '.join(ended) or 'no node'}"
        told = {"run": found.run, "ended": ended, "not_confirmed": stayed}
        ui.result(jsonlib.dumps(told) if json else words)
        missing = tuple(f for f in reached.failures.values() if f.kind != "no-agent")
        if missing:
            raise NodeError(missing)
    if stayed:
        ui.say(f"not confirmed on {', '.join(stayed)}: try `dslaunch clean`")
        raise typer.Exit(5)
