"""The decisions before a start, as rows for a terminal. Pure."""

from __future__ import annotations

import textwrap
from pathlib import Path

from dslaunch.launch.decisions import Decision
from dslaunch.terminal import one_line


def decision_rows(
    decisions: tuple[Decision, ...],
    columns: int | None = None,
    *,
    directory: Path | None = None,
) -> list[str]:
    """Return a row per decision: what, value, why; with `columns`, wrapped to that width.

    With `directory`, the last row names the run directory, and is not wrapped.
    """
    width = max([10, *(len(d.what) for d in decisions)])
    rows = [
        one_line(f"  {d.what:<{width}} {d.value}  ({'assumed: ' if d.assumed else ''}{d.why})")
        for d in decisions
    ]
    last = [f"  {'run':<{width}} {directory}"] if directory is not None else []
    if columns is None:
        return [*rows, *last]
    indent = " " * (width + 3)
    wrapper = textwrap.TextWrapper(
        max(columns, len(indent) + 20),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [*(line for row in rows for line in wrapper.wrap(row)), *last]
