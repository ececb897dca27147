"""What is known of a node's clock: the best measurement, until the clock is set."""

from __future__ import annotations

import math

import pytest

from dslaunch.transport.clock import Clock, MeasuredClock


def test_nothing_is_known_of_a_clock_before_it_is_measured() -> None:
    clock = MeasuredClock()
    assert clock.known() is None
    assert clock.error == math.inf


@pytest.mark.parametrize(
    ("later", "offset"),
    [
        (Clock(offset=2.01, error=0.02), 2.0),
        (Clock(offset=2.01, error=0.0001), 2.01),
        (Clock(offset=-60.0, error=0.02), -60.0),
    ],
    ids=["less exact", "more exact", "the clock was set"],
)
def test_the_more_exact_measurement_counts_unless_they_exclude_each_other(
    later: Clock, offset: float
) -> None:
    clock = MeasuredClock()
    clock.take(Clock(offset=2.0, error=0.01))
    clock.take(later)
    assert clock.offset == offset


def test_a_measurement_becomes_less_exact_with_time() -> None:
    clock = MeasuredClock()
    clock.take(Clock(offset=2.0, error=0.01))
    first, second = clock.error, clock.error
    assert 0.01 <= first <= second
