"""Texts of durations: `35 s`, `12:31`, `1:02:31`, `2 d 03:10:00`, `3 h`."""

from __future__ import annotations

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))
"""Seconds of each unit, the largest first."""


def duration_text(seconds: float) -> str:
    """Return a duration; below a minute with its unit, below ten seconds with one decimal."""
    seconds = max(seconds, 0.0)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return clock_text(whole)


def elapsed_text(seconds: float) -> str:
    """Return a duration in whole seconds that have passed."""
    whole = int(max(seconds, 0.0))
    return f"{whole} s" if whole < 60 else clock_text(whole)


def clock_text(seconds: float) -> str:
    """Return a time since a start as minutes and seconds, with hours and days where needed."""
    whole = round(max(seconds, 0.0))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02}:{minutes:02}:{rest:02}"
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}"


def short_time_text(seconds: float) -> str:
    """Return the time of something short, such as a step: `1.25 s`, `180 ms`."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def rounded_text(seconds: float) -> str:
    """Return about how long: `35 s`, `12 min`, `3 h`, `5 d`."""
    number, unit = _rounded(seconds)
    return f"{number} {unit}"


def age_text(seconds: float) -> str:
    """Return about how long, for a narrow column: `35s`, `12m`, `3h`, `5d`."""
    number, unit = _rounded(seconds)
    return f"{number}{unit[0]}"


def _rounded(seconds: float) -> tuple[int, str]:
    """Return a whole number of the largest unit of which there are at least two."""
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return round(seconds / size), unit
    return round(max(seconds, 0.0)), "s"
