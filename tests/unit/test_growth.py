"""What grows faster than its input is told, and only that, however busy the machine is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import chain, cycle, repeat

import pytest
from tests.growth import ROUNDS, SHORT_TRIES, Work, grows, result_within
from tests.hostile.patterns import Used, is_slow

ROUND = SHORT_TRIES + 1
LARGE_SUFFERS = [*[1.0] * SHORT_TRIES, 50.0]
"""A round in which the machine slows down whenever the large input is measured."""


class Machine:
    """Work that takes a power of its size, and a clock. Each try takes as many times as long as
    `slowness` says."""

    def __init__(self, power: float, slowness: Iterator[float]) -> None:
        self.now, self.tries = 0.0, 0
        self.power, self.slowness = power, slowness

    def _work(self, size: int) -> None:
        self.tries += 1
        self.now += size**self.power * next(self.slowness)

    def names_it(self) -> bool:
        return grows(
            prepare=lambda size: partial(self._work, size),
            size=100,
            clock=lambda: self.now,
            pause=lambda seconds: None,
        )


@pytest.mark.parametrize("power", [0.0, 1.0, 1.2])
def test_work_in_proportion_is_measured_in_one_round(power: float) -> None:
    quiet = Machine(power, repeat(1.0))
    assert not quiet.names_it()
    assert quiet.tries == ROUND


@pytest.mark.parametrize("power", [2.0, 3.0])
def test_faster_growth_is_named_after_all_rounds_of_two_sizes(power: float) -> None:
    quiet = Machine(power, repeat(1.0))
    assert quiet.names_it()
    assert quiet.tries == 2 * ROUNDS * ROUND


def test_one_quiet_moment_shows_that_work_is_in_proportion() -> None:
    disturbed = chain(LARGE_SUFFERS * (ROUNDS - 1), repeat(1.0))
    assert not Machine(1.0, disturbed).names_it()


def test_work_is_in_proportion_if_it_is_at_the_larger_size() -> None:
    disturbed = chain(LARGE_SUFFERS * ROUNDS, repeat(1.0))
    assert not Machine(1.0, disturbed).names_it()


def test_a_machine_that_is_always_slow_changes_nothing() -> None:
    assert not Machine(1.0, repeat(50.0)).names_it()
    assert Machine(2.0, repeat(50.0)).names_it()


@pytest.mark.parametrize("slow_try", range(SHORT_TRIES))
def test_growth_is_named_although_a_small_input_was_slow_in_each_round(slow_try: int) -> None:
    slowness = [1.0] * ROUND
    slowness[slow_try] = 50.0
    assert Machine(2.0, cycle(slowness)).names_it()


def _triples(size: int) -> Work:
    numbers = range(size)
    return lambda: sum(1 for _ in numbers for _ in numbers for _ in numbers)


def test_real_work_that_grows_with_the_third_power_is_named() -> None:
    """Not quadratic work: a machine that slows down three short tries would hide that."""
    assert grows(_triples, 8)


def test_a_real_quadratic_pattern_is_named() -> None:
    assert is_slow(Used("here", re.compile(r"\s+$"), ("search",)), size=200)


@pytest.mark.parametrize("pattern", [r"\S+", r"\b\d+ \d+\b", "^ *a"])
def test_a_pattern_in_proportion_is_not_named(pattern: str) -> None:
    assert not is_slow(Used("here", re.compile(pattern), ("findall",)))


def test_the_result_of_work_is_returned_unless_it_takes_too_long() -> None:
    assert result_within(60.0, lambda: "done") == "done"
    with pytest.raises(AssertionError):
        result_within(0.0, lambda: "done")
