"""The estimated start of a pending job, by SLURM's backfill scheduler. Pure.

The estimate is the start time in the record of a pending job, as in `squeue --start`, so it needs
no query besides that for the state. It is missing until the scheduler has planned the job, and on
sites without backfill.
"""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dslaunch.durations import rounded_text

if TYPE_CHECKING:
    from dslaunch.slurm.states import JobInfo

SELDOM = 60.0
"""Seconds between two estimates that are shown."""
SAME = 300
"""Seconds by which an estimate may change without being shown again."""


class Estimates(Struct):
    """The estimated starts that were shown."""

    shown: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By job: when an estimate was shown last, and which start."""

    def update(self, info: JobInfo, now: float) -> int | None:
        """Return the estimate if it should be shown; None: unknown, or shown already."""
        start = estimated_start(info, now)
        if start is None:
            return None
        last = self.shown.get(info.job)
        if last is not None and (now - last[0] < SELDOM or abs(start - last[1]) < SAME):
            return None
        self.shown[info.job] = (now, start)
        return start


def estimated_start(info: JobInfo, now: float) -> int | None:
    """Return Unix seconds; None: not pending, or no estimate, or one in the past."""
    if not info.waiting or info.started is None or info.started <= now:
        return None
    return info.started


def start_text(start: int, now: float, zone: tzinfo | None = None) -> str:
    """Return `estimated start 14:05 (in 2 h)`, with the date if it is not today. `zone`: that of
    the reader; None: this machine's."""
    try:
        when, today = datetime.fromtimestamp(start, zone), datetime.fromtimestamp(now, zone)
    except (OverflowError, OSError, ValueError):  # a year beyond the calendar
        return "estimated start unknown"
    clock = f"{when:%H:%M}" if when.date() == today.date() else f"{when:%Y-%m-%d %H:%M}"
    seconds = (when - today).total_seconds()
    left = rounded_text(seconds) if seconds >= 60 else "less than a minute"
    return f"estimated start {clock} (in {left})"
