"""When a pending job is estimated to start, as SLURM's backfill scheduler plans it. Pure.

The estimate is the start time of a pending job, in `scontrol show job` as in `squeue --start`: one
field of slurmctld, so that it costs no question beside that for the state. It is missing until the
scheduler has looked at the job, and where that runs no backfill.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dslaunch.slurm.states import JobInfo

SELDOM = 60.0
"""Seconds between two estimates that are told."""
SAME = 300
"""Seconds by which an estimate may move and be the same to a person."""
_HOUR, _DAY = 3600, 86400


@dataclass(slots=True)
class Estimates:
    """What was told of the estimated starts of jobs."""

    told: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By job: when something was told last, and which start."""

    def news(self, info: JobInfo, now: float, zone: tzinfo | None = None) -> str | None:
        """The estimate in words, if it is worth telling; None: unknown, or told already."""
        start = estimated_start(info, now)
        if start is None:
            return None
        last = self.told.get(info.job)
        if last is not None and (now - last[0] < SELDOM or abs(start - last[1]) < SAME):
            return None
        self.told[info.job] = (now, start)
        return in_words(start, now, zone)


def estimated_start(info: JobInfo, now: float) -> int | None:
    """Unix seconds; None: not pending, or no estimate, such as one that has passed."""
    if not info.waiting or info.started is None or info.started <= now:
        return None
    return info.started


def in_words(start: int, now: float, zone: tzinfo | None = None) -> str:
    """`estimated start 14:05 (in 2 h)`; with the date where it is not today. `zone`: of the
    reader; None: this machine's."""
    try:
        when, today = datetime.fromtimestamp(start, zone), datetime.fromtimestamp(now, zone)
    except (OverflowError, OSError, ValueError):  # a year that no calendar has
        return "estimated start unknown"
    clock = f"{when:%H:%M}" if when.date() == today.date() else f"{when:%Y-%m-%d %H:%M}"
    return f"estimated start {clock} (in {_rounded(when - today)})"


def _rounded(span: timedelta) -> str:
    seconds = span.total_seconds()
    if seconds >= 2 * _DAY:
        return f"{seconds / _DAY:.0f} d"
    if seconds >= 2 * _HOUR:
        return f"{seconds / _HOUR:.0f} h"
    if seconds >= 60:
        return f"{seconds / 60:.0f} min"
    return "less than a minute"
