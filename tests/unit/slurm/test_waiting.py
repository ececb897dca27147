"""Estimated starts of pending jobs, in words and not too often."""

from __future__ import annotations

from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dslaunch.slurm.states import JobInfo
from dslaunch.slurm.waiting import SELDOM, Estimates, estimated_start, start_text

NOW = 1_800_000_000  # 2027-01-15 08:00 UTC
PENDING = JobInfo("7", "PENDING", reason="Priority", started=NOW + 7500)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (30, "estimated start 08:00 (in less than a minute)"),
        (300, "estimated start 08:05 (in 5 min)"),
        (7500, "estimated start 10:05 (in 2 h)"),
        (16 * 3600, "estimated start 2027-01-16 00:00 (in 16 h)"),
        (3 * 86400, "estimated start 2027-01-18 08:00 (in 3 d)"),
    ],
)
def test_an_estimate_has_a_clock_time_and_a_distance(seconds: int, words: str) -> None:
    assert start_text(NOW + seconds, NOW, UTC) == words


@pytest.mark.parametrize(
    "info",
    [
        replace(PENDING, started=None),
        replace(PENDING, started=NOW - 5),
        replace(PENDING, state="RUNNING"),
        replace(PENDING, state="COMPLETED"),
    ],
)
def test_without_a_time_to_come_there_is_no_estimate(info: JobInfo) -> None:
    assert estimated_start(info, NOW) is None
    assert Estimates().update(info, NOW) is None


def test_an_estimate_is_reported_again_only_if_it_changes_and_after_a_minute() -> None:
    estimates = Estimates()
    later = replace(PENDING, started=NOW + 9000)
    assert estimates.update(PENDING, NOW) == NOW + 7500
    assert estimates.update(PENDING, NOW + SELDOM) is None
    assert estimates.update(later, NOW + SELDOM / 2) is None
    assert estimates.update(later, NOW + SELDOM) == NOW + 9000


@given(st.integers(min_value=0, max_value=2**63))
def test_any_number_of_slurms_becomes_words(start: int) -> None:
    assert start_text(start, NOW, UTC).startswith("estimated start ")
