"""`run --metrics`: the metrics of a run, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.run.view import ignore

if TYPE_CHECKING:
    from dslaunch.run.usage_monitor import UsageSample
    from dslaunch.run.usage_recorder import OnUsage

Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="ADDRESS:PORT|FILE",
        help="Serve Prometheus metrics on a port (default address: 127.0.0.1), or write a file.",
    ),
]


@contextmanager
def exported(target: str | None) -> Iterator[OnUsage]:
    """Yield a function that takes samples of a run and exports them.

    Raises UsageError if the target cannot be used.
    """
    if target is None:
        yield ignore
        return
    from dslaunch.report.metrics import Measured, metrics_text
    from dslaunch.report.metrics_output import open_output
    from dslaunch.run.stragglers import Streak

    output = open_output(target)
    streak = Streak()

    def export(run: str, sample: UsageSample) -> None:
        nonlocal streak
        streak = streak.after(sample)
        output.write(metrics_text(Measured(run, sample, streak.named)))

    try:
        yield export
    finally:
        output.close()
