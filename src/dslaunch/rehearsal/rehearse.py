"""Rehearse a job on its nodes, and record the result."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from dslaunch.rehearsal.judge import Rehearsal, judge_rehearsal
from dslaunch.run.launch import run_job
from dslaunch.run.rehearsal import RehearsalLimits, Rehearsed
from dslaunch.run.run_directory import write_private

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dslaunch.run.interrupts import Interrupts
    from dslaunch.run.request import RunRequest
    from dslaunch.run.view import RunView

RESULT = "rehearsal.json"
"""The result of a rehearsal in its run directory."""


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
    result = judge_rehearsal(found[0], limits)
    _record(directory, result)
    return result, directory


def _record(directory: Path, result: Rehearsal) -> None:
    """Write the result to the run directory; a full disk loses the record, not the result."""
    try:
        write_private(directory / RESULT, json.dumps(result.as_data(), indent=1) + "\n")
    except OSError:
        return
