"""What is known of a node's clock: what all measurements allow, until the clock is set."""

from __future__ import annotations

import math

import pytest

from dslaunch.transport.clock import DRIFT, Clock, MeasuredClock


def test_nothing_is_known_of_a_clock_before_it_is_measured() -> None:
    clock = MeasuredClock()
    assert clock.known() is None
    assert clock.error == math.inf


@pytest.mark.parametrize(
    ("later", "offset", "error"),
    [
        (Clock(offset=2.01, error=0.03), 2.0, 0.01),
        (Clock(offset=2.005, error=0.0001), 2.005, 0.0001),
        (Clock(offset=2.5, error=0.5), 2.005, 0.005),
        (Clock(offset=-60.0, error=0.02), -60.0, 0.02),
    ],
    ids=["less exact", "more exact", "each has one limit", "the clock was set"],
)
def test_measurements_hold_at_once_unless_they_exclude_each_other(
    later: Clock, offset: float, error: float
) -> None:
    clock = MeasuredClock()
    clock.take(Clock(offset=2.0, error=0.01))
    clock.take(later)
    assert clock.offset == pytest.approx(offset, abs=DRIFT)
    assert clock.error == pytest.approx(error, abs=100 * DRIFT)


def test_a_measurement_becomes_less_exact_with_time() -> None:
    clock = MeasuredClock()
    clock.take(Clock(offset=2.0, error=0.01))
    first, second = clock.error, clock.error
    assert 0.01 <= first <= second
