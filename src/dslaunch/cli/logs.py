"""`dslaunch logs`: the output of a run's ranks."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import lookup, ui
from dslaunch.cli.moments import moment
from dslaunch.cli.run_views import Fold, has_colors, is_folded, parse_ranks
from dslaunch.errors import ErrorCode, UsageError
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.log_selection import LogSelection, compiled

if TYPE_CHECKING:
    from dslaunch.report.log_view import JsonLogView, LogView
    from dslaunch.run.handle import RunHandle

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
    fold: Fold = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Print the output of a run's ranks.

    The output of an ended run is sorted by time, that of an active run by arrival.

    Example: dslaunch logs latest --ranks 0 --tail 100 --grep loss
    """
    selection = LogSelection(
        ranks=parse_ranks(rank),
        hosts=lookup.hosts_of(node),
        since=moment(since, "--since"),
        until=moment(until, "--until"),
        matching=compiled(grep, "--grep "),
        tail=line_count(tail),
    )
    found = lookup.find(run, file)
    found.check(selection)
    if timestamps and not found.sources().times:
        raise UsageError.coded(ErrorCode.NO_LINE_TIMES, run=found.name)
    view = _view(found, fold=fold, timestamps=timestamps, json=json)
    view.tick_in_background()
    if not follow:
        with closing(view):
            found.show_logs(view, ui.tell, selection, follow=False)
        return
    with closing(view), Interrupts() as interrupts:
        found.show_logs(view, ui.tell, selection, follow=True, until=lambda: interrupts.count > 0)
    if interrupts.count:
        raise typer.Exit(130)


def _view(
    run: RunHandle, *, fold: bool | None, timestamps: bool, json: bool
) -> JsonLogView | LogView:
    """Return what prints the lines of a run on standard output."""
    from dslaunch.report.log_view import JsonLogView, LogView

    if json:
        return JsonLogView(sys.stdout)
    ranks = run.record.world_size if run.record is not None else run.sources().ranks
    return LogView(
        sys.stdout,
        timestamps=timestamps,
        color=has_colors(),
        fold=is_folded(fold),
        ranks=ranks or 0,
        hosts=run.hosts,
    )


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
