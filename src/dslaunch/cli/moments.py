"""Times that users give: how long ago, or a date and time."""

from __future__ import annotations

import re
import time
from datetime import datetime

from dslaunch.errors import ErrorCode, UsageError

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PART = r"(\d{1,9}(?:\.\d{1,9})?)"
_DURATION = re.compile("".join(rf"(?:{_PART}{unit})?" for unit in _UNITS))
_EPOCH = re.compile(r"\d{9,11}(?:\.\d{1,9})?")


def age(text: str, option: str) -> float:
    """Return the time that lies an age such as `10m` in the past, in seconds since the epoch.

    Raises UsageError.
    """
    seconds = _duration(text)
    if seconds is None:
        raise UsageError.coded(
            ErrorCode.INVALID_OPTION,
            option=option,
            expected="a duration",
            value=text,
            example=f"{option} 12h",
        )
    return time.time() - seconds


def moment(text: str | None, option: str) -> float | None:
    """Return a time in seconds since the epoch: a duration before now, an ISO 8601 date or time
    (local unless it names its offset), or seconds since the epoch. Raises UsageError."""
    if text is None:
        return None
    seconds = _duration(text)
    if seconds is not None:
        return time.time() - seconds
    if _EPOCH.fullmatch(text):
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise UsageError.coded(
            ErrorCode.INVALID_OPTION,
            option=option,
            expected="a duration or a time",
            value=text,
            example=f"{option} 1h30m or {option} 2026-01-31T15:00",
        ) from None


def _duration(text: str) -> float | None:
    """Return seconds of `1h30m`; None: it is no duration."""
    found = _DURATION.fullmatch(text)
    if found is None or not text:
        return None
    units = zip(found.groups(), _UNITS.values(), strict=True)
    return sum(float(count) * unit for count, unit in units if count)
