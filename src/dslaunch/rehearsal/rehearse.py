"""Rehearse a job on its nodes, and record the result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec import convert
from msgspec.structs import replace

from dslaunch.json_text import json_text
from dslaunch.rehearsal.findings import Finding
from dslaunch.rehearsal.judge import Gap, Judged, Rehearsal, judge_rehearsal
from dslaunch.rehearsal.measured import Measured
from dslaunch.run.launch import run_job
from dslaunch.run.rehearsal import RehearsalLimits, Rehearsed
from dslaunch.run.rehearsal_result import LARGEST, RESULT, Verdict
from dslaunch.run.run_directory import read_private, write_private

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dslaunch.run.interrupts import Interrupts
    from dslaunch.run.request import RunRequest
    from dslaunch.run.view import RunView


def rehearse(
    request: RunRequest,
    limits: RehearsalLimits,
    show: Callable[[], RunView],
    stop: Interrupts | None = None,
) -> tuple[Rehearsal, Path]:
    """Start the job with its ranks recorded, stop it after some steps, and judge what was recorded.

    Returns the result and the run directory. The job is neither detached nor restarted, whatever
    the request says. Raises a DslaunchError for whatever prevents the start.
    """
    found: list[Rehearsed] = []
    rehearsal = replace(request, rehearsal=limits, restarts=0, detached=False)
    _, directory = run_job(rehearsal, show, stop, on_rehearsed=found.append)
    result = judge_rehearsal(found[0])
    _record(directory, result)
    return result, directory


def recorded_rehearsal(directory: Path) -> Judged | None:
    """Return what is recorded of a rehearsal in its run directory; None: nothing that is valid."""
    gaps = {gap.value: gap for gap in Gap}
    try:
        data = json.loads(read_private(directory / RESULT, LARGEST))
        return Judged(
            verdict=Verdict(data["verdict"]),
            findings=convert(data["findings"], tuple[Finding, ...]),
            measured=convert(data["measured"], Measured),
            not_rehearsed=tuple(gaps[each["code"]] for each in data["not_rehearsed"]),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _record(directory: Path, result: Rehearsal) -> None:
    """Write the result to the run directory; a full disk loses the record, not the result."""
    try:
        write_private(directory / RESULT, json_text(result.as_data(), indent=1) + "\n")
    except OSError:
        return
