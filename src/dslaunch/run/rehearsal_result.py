"""The result of a rehearsal in its run directory, as far as lists of runs need it."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path

from dslaunch.run.run_directory import read_private

RESULT = "rehearsal.json"
"""The result of a rehearsal in its run directory."""
LARGEST = 16 << 20
"""Bytes of it that are read."""


class Verdict(StrEnum):
    """What a rehearsal says of a job."""

    WOULD_RUN = "would-run"
    WOULD_FAIL = "would-fail"
    NOT_REHEARSED = "not-rehearsed"


def recorded_verdict(directory: Path) -> Verdict | None:
    """Return the verdict in a run directory; None: the run was no rehearsal, or has none yet."""
    try:
        return Verdict(json.loads(read_private(directory / RESULT, LARGEST))["verdict"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
