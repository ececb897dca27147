"""`dslaunch attach`: watch a run that goes on."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Annotated

import typer

from dslaunch.cli import lookup, ui
from dslaunch.cli.run import Ranks, parse_ranks


def attach(
    run: lookup.Run,
    file: lookup.Cluster_ = None,
    ranks: Ranks = None,
    json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")] = False,
) -> None:
    """Watch a run that goes on, to its end. Ctrl-C leaves it alone.

    Example: dslaunch attach latest
    """
    from dslaunch.report.live import JsonScreen, TerminalScreen
    from dslaunch.run.follow import Follower, nothing_reached
    from dslaunch.run.interrupts import Interrupts
    from dslaunch.run.reach import ask, reach
    from dslaunch.run.watch import Watch

    found = lookup.find(run, file)
    screen = (
        JsonScreen(sys.stdout)
        if json
        else TerminalScreen(
            sys.stdout,
            sys.stderr,
            nodes=tuple(node.host for node in found.nodes),
            ranks=parse_ranks(ranks),
            colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
            width=shutil.get_terminal_size().columns,
        )
    )
    with Interrupts() as wishes, reach(found.cluster, found.nodes, found.agents) as reached:
        if not reached.sessions:
            raise nothing_reached(reached, found.run)
        ask(reached)  # measures the clocks
        follower = Follower(reached, Watch(screen))
        outcome = follower.follow(until=lambda: wishes.count > 0)
        if follower.open:
            ui.say(f"run {found.run} goes on; `dslaunch stop {found.run}` ends it")
            raise typer.Exit(130)
    ui.say(f"dslaunch: {outcome.message}")
    raise typer.Exit(outcome.exit_code)
