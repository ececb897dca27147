"""`dslaunch stacks`: what every rank of a run is doing."""

from __future__ import annotations

from typing import Annotated

import typer

from dslaunch.cli import lookup, ui
from dslaunch.errors import NodeError


def stacks(
    run: lookup.RunName,
    file: lookup.ClusterOfRun = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that a node may take.")] = 15.0,
    json: Annotated[bool, typer.Option("--json", help="Print all stacks as JSON.")] = False,
) -> None:
    """Show what every rank is doing, the odd ones out first.

    Equal stacks are shown as one.

    Example: dslaunch stacks latest
    """
    from dslaunch.report.stacks import fold, page

    told = lookup.find(run, file).stacks(timeout)
    if json:
        ui.data(told.stacks)
    else:
        ui.result(page(fold(told.stacks), ui.width()))
    if told.unresponsive:
        ui.say(f"no answer from {', '.join(told.unresponsive)}")
    if told.failures:
        raise NodeError(told.failures)
