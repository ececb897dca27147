"""Texts of durations: `35 s`, `12:31`, `1:02:31`, `2 d 03:10:00`."""

from __future__ import annotations


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
