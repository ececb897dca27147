"""How often something happens by chance, and how many values count as independent."""

from __future__ import annotations

import math
from itertools import repeat
from random import Random

import pytest

from dslaunch.run.sign_test import (
    correlation_time,
    log_of_at_least,
    log_of_choices,
    log_of_largest,
)


def with_memory(count: int, memory: float, seed: int = 1) -> list[float]:
    """Values of which each one resembles the one before."""
    random, values = Random(seed), [0.0]
    for _ in repeat(None, count - 1):
        new = random.gauss(0, math.sqrt(1 - memory**2))
        values.append(memory * values[-1] + new)
    return values


def test_the_probability_of_at_least_so_many_events() -> None:
    assert log_of_at_least(0, 10, 0.3) == pytest.approx(0.0)
    assert log_of_at_least(10, 10, 0.5) == pytest.approx(10 * math.log(0.5))
    assert log_of_at_least(3, 4, 0.25) == pytest.approx(math.log(4 * 0.25**3 * 0.75 + 0.25**4))
    assert log_of_at_least(2000, 2000, 0.5) == pytest.approx(2000 * math.log(0.5))


def test_the_number_of_choices() -> None:
    assert log_of_choices(8, 3) == pytest.approx(math.log(56))


def test_the_probability_that_values_are_the_largest_of_all() -> None:
    assert log_of_largest(0, 4, 9) == pytest.approx(0.0)
    assert log_of_largest(3, 3, 5) == pytest.approx(-math.log(56))
    assert log_of_largest(2, 3, 5) == pytest.approx(math.log((1 + 3 * 5) / 56))
    assert log_of_largest(3, 3, 0) == pytest.approx(0.0)


def test_equal_values_and_rounded_ones_are_independent() -> None:
    assert correlation_time([1.0] * 50) == 1
    assert correlation_time([1.0, 1.0001] * 25) == 1
    assert correlation_time([], [1.0, 2.0, 3.0]) == 1


def test_values_without_memory_are_nearly_all_independent() -> None:
    times = [correlation_time(with_memory(96, 0.0, seed)) for seed in range(20)]
    assert sum(times) / len(times) < 1.2


def test_a_change_of_the_mean_between_two_parts_is_no_memory() -> None:
    before = with_memory(96, 0.0)
    assert correlation_time(before, [value + 100 for value in before]) < 1.5


@pytest.mark.parametrize("outlier", [0.0, 1e6])
def test_values_that_resemble_those_before_count_less(outlier: float) -> None:
    times = []
    for seed in range(20):
        values = with_memory(192, 0.9, seed)
        values[100] += outlier
        times.append(correlation_time(values))
    # (1 + 0.9) / (1 - 0.9): each counts for a nineteenth
    assert sum(times) / len(times) > 5
