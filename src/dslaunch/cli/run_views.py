"""The view of a run: terminal or JSON lines, of all or some ranks."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import ui
from dslaunch.errors import UsageError
from dslaunch.plural import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from dslaunch.cluster.model import Cluster
    from dslaunch.report.json_view import JsonView
    from dslaunch.report.live import TerminalView

Ranks = Annotated[
    str | None,
    typer.Option(
        "--ranks", "-r", metavar="RANKS", help="Show only these ranks, for example 0 or 0-3,8."
    ),
]
Fold = Annotated[
    bool | None,
    typer.Option(
        "--fold/--no-fold",
        help="Print equal lines of several ranks once (default: on a terminal).",
        show_default=False,
    ),
]
MOST_RANKS = 1_000_000


def make(
    nodes: tuple[str, ...],
    *,
    json: bool,
    ranks: frozenset[int] | None,
    quiet: bool = False,
    fold: bool | None = None,
    progress_formats: Sequence[str] = (),
) -> JsonView | TerminalView:
    """Return the view for standard output and error. Close it before anything else is printed.

    `fold`: whether equal lines of several ranks are one; None: on a terminal. `progress_formats`:
    `Cluster.progress`.
    """
    from dslaunch.report.json_view import JsonView
    from dslaunch.report.live import TerminalView, ViewOptions

    if json:
        return JsonView(sys.stdout, tell=lambda why: ui.say(f"dslaunch: {why}"))
    view = TerminalView(
        sys.stdout,
        sys.stderr,
        nodes=nodes,
        options=ViewOptions(
            ranks=ranks,
            quiet=quiet,
            color=has_colors(),
            fold=is_folded(fold),
            progress_formats=progress_formats,
        ),
        live=has_status_line(sys.stdout, sys.stderr),
        width=columns,
    )
    view.tick_in_background()
    return view


def has_colors() -> bool:
    """Return whether the output of ranks has colors: on a terminal, unless the user wants none."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def is_folded(chosen: bool | None) -> bool:
    """Return whether equal lines of several ranks are one; None: on a terminal."""
    return sys.stdout.isatty() if chosen is None else chosen


def has_status_line(out: TextIO, err: TextIO) -> bool:
    """Return whether standard error can show a line that is redrawn.

    Not where standard output is a pipe: its reader, such as `head` or `tee`, may write to the same
    terminal.
    """
    if not err.isatty() or os.environ.get("TERM") == "dumb":
        return False
    try:
        return not stat.S_ISFIFO(os.fstat(out.fileno()).st_mode)
    except (OSError, ValueError):  # closed, or no file
        return True


def columns() -> int:
    """Return the width of standard error's terminal, which shows the progress line."""
    from dslaunch.report import width

    return width.columns(sys.stderr)


def parse_ranks(text: str | None) -> frozenset[int] | None:
    """Return `0-3,8` as a set of ranks. Raises UsageError."""
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not _number(first) or (dash and not _number(last)):
            raise _no_rank(part, "not a rank")
        ranks = range(int(first), int(last or first) + 1)
        if not 0 < len(ranks) <= MOST_RANKS:
            raise _no_rank(part, "too many ranks" if ranks else "first rank is greater than last")
        found.update(ranks)
    return frozenset(found)


def shown_ranks(text: str | None, cluster: Cluster, world_size: int) -> frozenset[int] | None:
    """Return the ranks that are shown: those of `text`, else those of the cluster file that exist;
    None: all. Raises UsageError for ranks of `text` that do not exist."""
    if text is None:
        of_file = parse_ranks(cluster.ranks) or ()
        return frozenset(rank for rank in of_file if rank < world_size) or None
    ranks = parse_ranks(text)
    check_ranks(ranks, world_size, text)
    return ranks


def check_ranks(ranks: frozenset[int] | None, world_size: int, text: str | None) -> None:
    """Raise UsageError for ranks from `world_size` up; `text` is the user's."""
    missing = sorted(rank for rank in ranks or () if rank >= world_size)
    if missing:
        last = world_size - 1
        count = counted(world_size, "rank")
        raise UsageError(
            f"--ranks {text}: rank {missing[0]} does not exist: the run has {count}",
            hint="the only rank is 0" if last == 0 else f"ranks are 0 to {last}",
        )


def _number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _no_rank(part: str, why: str) -> UsageError:
    return UsageError(f"--ranks {part}: {why}", hint="use for example --ranks 0-3,8")
