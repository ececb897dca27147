"""The texts of durations."""

from __future__ import annotations

import pytest

from dslaunch.durations import (
    age_text,
    clock_text,
    duration_text,
    elapsed_text,
    rounded_text,
    short_time_text,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 s"), (9.94, "9.9 s"), (35.2, "35 s"), (751, "12:31"), (3751, "1:02:31")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1.0, "0 s"), (0.4, "0 s"), (59.9, "59 s"), (751.0, "12:31"), (3723.0, "1:02:03")],
)
def test_elapsed_time_is_in_whole_seconds(seconds: float, text: str) -> None:
    assert elapsed_text(seconds) == text


def test_days_are_counted() -> None:
    assert clock_text(2 * 86400 + 3 * 3600 + 600) == "2 d 03:10:00"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0004, "0 ms"), (0.18, "180 ms"), (1.25, "1.25 s"), (75.0, "75.00 s")]
)
def test_short_times_are_in_milliseconds_below_a_second(seconds: float, text: str) -> None:
    assert short_time_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (119, "119 s"), (720, "12 min"), (7200, "2 h"), (5e5, "6 d")],
)
def test_a_rounded_duration_has_one_unit(seconds: float, text: str) -> None:
    assert rounded_text(seconds) == text
    number, unit = text.split()
    assert age_text(seconds) == number + unit[0]
