"""Where a run is shown: a terminal, or JSON lines; and which ranks of it."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from dslaunch.report.live import JsonScreen, TerminalScreen

Ranks = Annotated[
    str | None, typer.Option(help="Show only these ranks' output, such as 0 or 0-3,8.")
]


def make(
    nodes: tuple[str, ...], *, json: bool, ranks: frozenset[int] | None, quiet: bool = False
) -> JsonScreen | TerminalScreen:
    """The screen for standard output and error."""
    from dslaunch.report.live import JsonScreen, TerminalScreen

    if json:
        return JsonScreen(sys.stdout)
    return TerminalScreen(
        sys.stdout,
        sys.stderr,
        nodes=nodes,
        ranks=ranks,
        quiet=quiet,
        colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
        width=shutil.get_terminal_size().columns,
    )


def parse_ranks(text: str | None) -> frozenset[int] | None:
    """Read `0-3,8` as a set of ranks. Raises UsageError."""
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise UsageError(
                f"--ranks: {part!r} is no rank", hint="write for example --ranks 0-3,8"
            )
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
