"""How often something happens by chance, and how many values count as independent."""

from __future__ import annotations

import math
from itertools import repeat
from random import Random

import pytest

from dslaunch.run.sequential_test import begin_of_most, correlation_time, log_ratio


def with_memory(count: int, memory: float, seed: int = 1) -> list[float]:
    """Values of which each one resembles the one before."""
    random, values = Random(seed), [0.0]
    for _ in repeat(None, count - 1):
        new = random.gauss(0, math.sqrt(1 - memory**2))
        values.append(memory * values[-1] + new)
    return values


def test_the_ratio_is_that_of_two_probabilities() -> None:
    assert log_ratio([], 0.5) == 0
    assert log_ratio([True, True, False], 0.5) == pytest.approx(math.log(0.9**2 * 0.1 / 0.5**3))
    assert log_ratio([True] * 2000, 0.2) == pytest.approx(2000 * math.log(0.9 / 0.2))


def test_the_begin_is_where_something_begins_to_happen_in_most_steps() -> None:
    assert begin_of_most([False] * 7 + [True, True, True, False] + [True] * 5, 0.5) == 7
    assert begin_of_most([True, False, True, False], 0.5) == 4
    assert begin_of_most([], 0.5) == 0


def test_what_happens_in_half_of_the_steps_is_seldom_taken_for_more() -> None:
    random, most = Random(1), 0.01
    found = 0
    for _ in range(2000):
        happened = [random.random() < 0.5 for _ in range(60)]
        ratios = [log_ratio(happened[:steps], 0.5) for steps in range(1, 60)]
        found += max(ratios) >= -math.log(most)
    assert found <= 2000 * most


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
