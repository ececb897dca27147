"""`dslaunch attach`: watch a run that goes on."""

from __future__ import annotations

from typing import Annotated

import typer

from dslaunch.cli import lookup, screens, slurm_runs, ui


def attach(
    run: lookup.Run,
    file: lookup.Cluster_ = None,
    ranks: screens.Ranks = None,
    json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")] = False,
) -> None:
    """Watch a run that goes on, to its end. Ctrl-C leaves it alone.

    Example: dslaunch attach latest
    """
    from dslaunch.run.follow import Follower, nothing_reached
    from dslaunch.run.interrupts import Interrupts
    from dslaunch.run.reach import ask, reach
    from dslaunch.run.watch import Watch

    found = lookup.find(run, file)
    hosts = tuple(node.host for node in found.nodes)
    wanted = lookup.ranks_of(found, ranks)
    screen = screens.make(hosts, json=json, ranks=wanted)
    if found.local is not None and slurm_runs.is_slurm(found.local):
        raise typer.Exit(slurm_runs.attach(found.local, screen))
    with Interrupts() as wishes, reach(found.cluster, found.nodes, found.agents) as reached:
        if not reached.sessions:
            _over(found)
            raise nothing_reached(reached, found.run)
        ask(reached)  # measures the clocks
        follower = Follower(reached, Watch(screen))
        outcome = follower.follow(until=lambda: wishes.count > 0)
        if follower.open:
            ui.say(f"run {found.run} goes on; `dslaunch stop {found.run}` ends it")
            raise typer.Exit(130)
    ui.say(f"dslaunch: {outcome.message}")
    raise typer.Exit(outcome.exit_code)


def _over(found: lookup.Found) -> None:
    """If the run is known to be over, say how it ended and exit like it."""
    from dslaunch.run.reach import reach
    from dslaunch.run.state import node_runs

    with reach(found.cluster, found.nodes) as reached:
        state = node_runs(reached).get(found.agents)
    message, code = None, 0
    if state is not None:
        message, code = state.outcome().message, state.outcome().exit_code
    elif found.local is not None and found.local.result is not None:
        message, code = found.local.result.message, found.local.result.exit_code
    if message is not None:
        ui.say(f"run {found.run} is over: {message}")
        ui.say(f"`dslaunch logs {found.run}` prints what it wrote")
        raise typer.Exit(code)
