"""`dslaunch logs`: what the ranks of a run have written."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import lookup, ui
from dslaunch.cli.run_views import parse_ranks
from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from dslaunch.run.events import Event, Line

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def logs(
    run: lookup.RunName,
    file: lookup.ClusterOfRun = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as long as the run does.")
    ] = False,
    rank: Annotated[
        str | None,
        typer.Option("--ranks", "--rank", "-r", help="Only these ranks, such as 0 or 0-3,8."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only what was written in the last 90s, 10m, 2h, 1d.")
    ] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", "-g", help="Only lines that match this expression.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Print what a run's ranks wrote: in the order of time if it is over, else of arrival.

    Example: dslaunch logs latest --rank 0 --grep loss
    """
    view = LogPrinter(parse_ranks(rank), seconds(since), pattern(grep), json)
    found = lookup.find(run, file)
    lookup.ranks_of(found, rank)
    found.logs(view, ui.tell, follow=follow)


@dataclass(frozen=True, slots=True)
class LogPrinter:
    """A view that prints chosen lines and nothing else."""

    ranks: frozenset[int] | None
    since: float | None
    """Seconds since the epoch."""
    pattern: re.Pattern[str] | None
    json: bool

    def line(self, line: Line) -> None:
        """Print it, if it is wanted."""
        from dslaunch.report.live import prefix
        from dslaunch.terminal import without_color

        if self.ranks is not None and line.rank not in self.ranks:
            return
        if self.since is not None and line.time < self.since:
            return
        text = line.text if sys.stdout.isatty() else without_color(line.text)
        if self.pattern is not None and not self.pattern.search(text):
            return
        if self.json:
            ui.data(line.as_dict(), indent=None)
        else:
            ui.result(f"{prefix(line)}{text}", colors=sys.stdout.isatty())

    def event(self, event: Event) -> None:
        """Nothing: these are the ranks' words."""


def seconds(text: str | None, option: str = "--since") -> float | None:
    """`10m` as the time that was ten minutes ago. Raises UsageError."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if found is None:
        raise UsageError(f"{option}: {text!r} is no span of time", hint="write 90s, 10m, 2h or 1d")
    return time.time() - float(found[1]) * _UNITS[found[2]]


def pattern(text: str | None) -> re.Pattern[str] | None:
    """A regular expression. Raises UsageError."""
    try:
        return re.compile(text) if text is not None else None
    except re.error as error:
        raise UsageError(f"--grep: {text!r} is no regular expression: {error}") from None
