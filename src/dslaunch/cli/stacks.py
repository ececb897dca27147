"""`dslaunch stacks`: the Python stacks of every rank."""

from __future__ import annotations

from typing import Annotated

import typer

from dslaunch.cli import lookup, options, ui
from dslaunch.errors import NodeError
from dslaunch.report.stacks import fold, page


def stacks(
    run: lookup.RunName = lookup.LATEST,
    file: lookup.ClusterOfRun = None,
    timeout: Annotated[
        float,
        options.seconds("Time to wait for the answer of a node.", least=1),
    ] = 15.0,
    json: Annotated[bool, typer.Option("--json", help="Print all stacks as JSON.")] = False,
) -> None:
    """Show the Python stacks of all ranks, outliers first.

    Ranks with equal stacks are one group.

    Example: dslaunch stacks latest
    """
    found = lookup.find(run, file).stacks(timeout)
    if json:
        ui.data(found.stacks)
    else:
        ui.result(page(fold(found.stacks), ui.width()))
    if found.unresponsive:
        ui.say(f"unresponsive: {', '.join(found.unresponsive)}")
    if found.failures:
        raise NodeError(found.failures)
