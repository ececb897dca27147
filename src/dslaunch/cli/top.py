"""`dslaunch top`: what the nodes and ranks of a run use, and which of them are slow."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import lookup, options, ui
from dslaunch.errors import DslaunchError, UsageError
from dslaunch.run.log_selection import LogSelection

if TYPE_CHECKING:
    from dslaunch.report.usage_table import Choice
    from dslaunch.run.handle import RunHandle
    from dslaunch.run.slower_rank import SlowerRank
    from dslaunch.run.usage_monitor import UsageSample, UsageSource

    Measured = tuple[UsageSample, tuple[SlowerRank, ...]]

FIRST = 1.0
"""Seconds between the first two measurements: rates need two."""
LEAST_WAIT = 5.0
"""Seconds to wait for the answers of nodes, at least."""
SORT_NAMES = "node, gpu, cpu, memory, network or step-time"


def top(
    run: lookup.RunName = lookup.LATEST,
    file: lookup.ClusterOfRun = None,
    interval: Annotated[
        float,
        options.seconds("Time between two measurements.", least=1),
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Measure once, print, and exit.")] = False,
    sort: Annotated[str, typer.Option(metavar="NAME", help=f"Sort rows by {SORT_NAMES}.")] = "node",
    node: Annotated[
        list[str] | None,
        typer.Option(
            "--node", metavar="HOSTS", help="Show only these nodes, for example node[01-03]."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per measurement.")
    ] = False,
) -> None:
    """Show what nodes and ranks use, and which ranks are slow.

    On a terminal, keys sort (s), filter (/) and quit (q). Elsewhere each measurement is printed.

    Example: dslaunch top latest --once
    """
    from dslaunch.report.usage_table import SORTS, Choice

    if sort not in SORTS:
        raise UsageError(f"--sort {sort}: not a column", hint=f"use {SORT_NAMES}")
    handle = lookup.find(run, file)
    hosts = _nodes_of(handle, node or [])
    with handle.usage_source(hosts) as source:
        for failure in source.failures.values():
            ui.tell(f"no answer from {failure.host}: {failure.message}")
        measured = _measurements(source, interval)
        if json:
            _print_json(handle.name, measured, interval, once=once)
        elif once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _print_pages(handle.name, measured, interval, Choice(sort), once=once)
        else:
            _show(handle.name, measured, interval, Choice(sort))


def _nodes_of(run: RunHandle, patterns: list[str]) -> tuple[str, ...]:
    """Return the nodes of a run that are named. Raises UsageError for others."""
    from dslaunch.cluster.nodeset import expand

    named = [host for pattern in patterns for host in expand(pattern)]
    if named:
        run.check(LogSelection(hosts=frozenset(named)))
    return tuple(named)


def _measurements(source: UsageSource, interval: float) -> Iterator[Measured]:
    """Yield samples with the stragglers known by then, until the run has ended; never waits between
    them but for the first."""
    from dslaunch.run.stragglers import Streak

    timeout = max(interval, LEAST_WAIT)
    source.sample(timeout)
    time.sleep(FIRST)
    streak = Streak()
    while not source.over:
        sample = source.sample(timeout)
        streak = streak.after(sample)
        yield sample, streak.named


def _print_json(run: str, measured: Iterator[Measured], interval: float, *, once: bool) -> None:
    from dslaunch.report.usage_data import sample_data

    def show(each: Measured) -> None:
        ui.data(sample_data(run, *each), indent=None)

    _each(run, measured, interval, show, once=once)


def _print_pages(
    run: str, measured: Iterator[Measured], interval: float, choice: Choice, *, once: bool
) -> None:
    from dslaunch.report.usage_table import Size, page

    def show(each: Measured) -> None:
        size = Size(width=ui.width())
        ui.result("\n".join(page(run, *each, choice, size)))

    _each(run, measured, interval, show, once=once)


def _each(
    run: str,
    measured: Iterator[Measured],
    interval: float,
    show: Callable[[Measured], None],
    *,
    once: bool,
) -> None:
    """Show each measurement, or only the first. Raises DslaunchError if there is none."""
    shown = False
    for each in measured:
        show(each)
        shown = True
        if once:
            return
        time.sleep(interval)
    if not shown:
        raise DslaunchError(f"run {run} ended before it was measured")


def _show(run: str, measured: Iterator[Measured], interval: float, choice: Choice) -> None:
    """Show the measurements on the whole terminal until the user quits or the run ends."""
    from dslaunch.cli.top_screen import Screen
    from dslaunch.report.usage_table import page

    screen = Screen(choice)
    try:
        with screen.opened():
            for sample, stragglers in measured:
                screen.show(partial(page, run, sample, stragglers), interval)
                if screen.quit:
                    return
    except KeyboardInterrupt:  # as usual for such a screen, it is no failure
        return
    ui.tell(f"run {run} has ended")
