"""`dslaunch logs`: the output of a run's ranks."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import lookup, ui
from dslaunch.cli.moments import moment
from dslaunch.cli.run_views import parse_ranks
from dslaunch.errors import ErrorCode, UsageError
from dslaunch.report.live import prefix
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.log_selection import LogSelection, compiled
from dslaunch.terminal import without_color

if TYPE_CHECKING:
    from dslaunch.run.events import Event, Line

Tail = Annotated[
    str | None,
    typer.Option(
        "--tail",
        "-n",
        metavar="N",
        help="Show only the last N lines of all selected ranks together, or all.",
    ),
]


def logs(
    run: lookup.RunName = lookup.LATEST,
    file: lookup.ClusterOfRun = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new output until the run ends.")
    ] = False,
    tail: Tail = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", "-t", help="Print the time of each line, in UTC.")
    ] = False,
    rank: Annotated[
        str | None,
        typer.Option(
            "--ranks",
            "-r",
            metavar="RANKS",
            help="Show only these ranks, for example 0 or 0-3,8.",
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            "--node",
            metavar="HOSTS",
            help="Show only the output of these nodes, for example node[01-04],node07.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Show only newer output: an age such as 90s or 10m, or a time such as "
            "2026-01-31T15:00.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Show only older output: an age or a time."),
    ] = None,
    grep: Annotated[
        str | None,
        typer.Option(
            "--grep", "-g", metavar="REGEX", help="Show only lines that match an expression."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Print the output of a run's ranks.

    The output of an ended run is sorted by time, that of an active run by arrival.

    Example: dslaunch logs latest --ranks 0 --tail 100 --grep loss
    """
    selection = LogSelection(
        ranks=parse_ranks(rank),
        hosts=hosts(node),
        since=moment(since, "--since"),
        until=moment(until, "--until"),
        matching=compiled(grep, "--grep "),
        tail=line_count(tail),
    )
    found = lookup.find(run, file)
    found.check(selection)
    if timestamps and not found.sources().times:
        raise UsageError.coded(ErrorCode.NO_LINE_TIMES, run=found.name)
    view = LogPrinter(timestamps=timestamps, json=json, colors=colors())
    if not follow:
        found.show_logs(view, ui.tell, selection, follow=False)
        return
    with Interrupts() as interrupts:
        found.show_logs(view, ui.tell, selection, follow=True, until=lambda: interrupts.count > 0)
    if interrupts.count:
        raise typer.Exit(130)


@dataclass(frozen=True, slots=True)
class LogPrinter:
    """A view that prints lines and nothing else."""

    timestamps: bool
    json: bool
    colors: bool

    def line(self, line: Line) -> None:
        """Print a line; states of a progress bar that others replace are left out."""
        if line.partial:
            return
        if self.json:
            ui.data(line.as_data(), indent=None)
            return
        text = line.text if self.colors else without_color(line.text)
        when = f"{utc(line.time)} " if self.timestamps else ""
        ui.result(f"{when}{prefix(line)}{text}", colors=self.colors)

    def event(self, event: Event) -> None:
        """Do nothing: only output is printed."""


def colors() -> bool:
    """Return whether colors of ranks are kept: on a terminal, unless the user wants none."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def utc(when: float) -> str:
    """Return a time as `2026-01-31T14:00:00.123Z`."""
    text = datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def hosts(text: str | None) -> frozenset[str] | None:
    """Return the nodes of a folded list. Raises UsageError."""
    if text is None:
        return None
    from dslaunch.cluster.nodeset import expand

    try:
        return frozenset(expand(text))
    except ValueError as error:
        raise UsageError(f"--node {text}: {error}") from None


def line_count(text: str | None) -> int | None:
    """Return a number of lines; None for `all`. Raises UsageError."""
    if text is None or text == "all":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise UsageError.coded(
            ErrorCode.INVALID_OPTION,
            option="--tail",
            expected="a number of lines or all",
            value=text,
            example="--tail 20",
        )
    return int(text)
