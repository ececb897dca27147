"""`dslaunch report`: one HTML page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dslaunch import api
from dslaunch.cli import lookup, ui
from dslaunch.cli.collection import without_collection
from dslaunch.cli.output_files import STDOUT, output_option
from dslaunch.run.rehearsal_result import recorded_verdict

if TYPE_CHECKING:
    from dslaunch.rehearsal.judge import Judged
    from dslaunch.run.run_details import RunDetails


def report(
    run: lookup.RunName = lookup.LATEST,
    file: lookup.ClusterOfRun = None,
    output: Annotated[
        Path | None,
        output_option(
            "--output",
            "-o",
            text="Write the page to this file; - is standard output (default: RUN.html).",
            or_stdout=True,
        ),
    ] = None,
) -> None:
    """Write one HTML page about a run.

    It has root cause, timeline, curves, decisions and environment, and needs no network and no
    script. Values of secrets are masked.

    Example: dslaunch report latest -o run.html
    """
    from dslaunch.report.run_page import run_page

    with without_collection():
        details = api.run_details(lookup.find(run, file))
        page = run_page(details, _rehearsal(details))
    if str(output) == STDOUT:
        ui.document(page)
    else:
        ui.write(output or Path(f"{details.name}.html"), page, "--output", errors="replace")


def _rehearsal(details: RunDetails) -> Judged | None:
    """Return what the run has shown if it was a rehearsal."""
    directory = details.recorded.directory
    if directory is None or recorded_verdict(directory) is None:
        return None
    from dslaunch.rehearsal.rehearse import recorded_rehearsal

    return recorded_rehearsal(directory)
