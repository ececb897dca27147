"""The view of a run: on a terminal or as JSON lines, of all ranks or some."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import ui
from dslaunch.errors import UsageError
from dslaunch.plural import counted

if TYPE_CHECKING:
    from dslaunch.report.live import JsonView, TerminalView

Ranks = Annotated[
    str | None, typer.Option("--ranks", "-r", help="Show only these ranks, such as 0 or 0-3,8.")
]
MOST_RANKS = 1_000_000


def make(
    nodes: tuple[str, ...], *, json: bool, ranks: frozenset[int] | None, quiet: bool = False
) -> JsonView | TerminalView:
    """Return the view for standard output and error."""
    from dslaunch.report.live import JsonView, TerminalView

    if json:
        return JsonView(sys.stdout, tell=lambda why: ui.say(f"dslaunch: {why}"))
    return TerminalView(
        sys.stdout,
        sys.stderr,
        nodes=nodes,
        ranks=ranks,
        quiet=quiet,
        colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
        width=columns,
    )


def columns() -> int:
    """Return the width of the terminal that shows the progress line, which is standard error's."""
    from dslaunch.report import width

    return width.columns(sys.stderr)


def parse_ranks(text: str | None) -> frozenset[int] | None:
    """Read `0-3,8` as a set of ranks. Raises UsageError."""
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not _number(first) or (dash and not _number(last)):
            raise _no_rank(part, "is no rank")
        ranks = range(int(first), int(last or first) + 1)
        if not 0 < len(ranks) <= MOST_RANKS:
            raise _no_rank(part, "names too many ranks" if ranks else "goes backwards")
        found.update(ranks)
    return frozenset(found)


def existing_ranks(text: str | None, world_size: int) -> frozenset[int] | None:
    """Read ranks of a run with so many. Raises UsageError, also for one that there is not."""
    ranks = parse_ranks(text)
    check_ranks(ranks, world_size, text)
    return ranks


def check_ranks(ranks: frozenset[int] | None, world_size: int, text: str | None) -> None:
    """Raise UsageError for a rank that a run with so many does not have; `text` named it."""
    missing = sorted(rank for rank in ranks or () if rank >= world_size)
    if missing:
        last = world_size - 1
        count = counted(world_size, "rank")
        raise UsageError(
            f"--ranks {text}: there is no rank {missing[0]}: the run has {count}",
            hint="the only rank is 0" if last == 0 else f"ranks are 0 to {last}",
        )


def _number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _no_rank(part: str, why: str) -> UsageError:
    return UsageError(f"--ranks: {part!r} {why}", hint="write for example --ranks 0-3,8")
