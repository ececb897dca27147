"""Whether something happens in most steps since one of them, and how certain that is. Pure.

A sequential probability ratio test (A. Wald, Sequential tests of statistical hypotheses, 1945) of
yes and no, which holds for any distribution of what is measured. If something happens with the
probability `usual` in each of the independent steps after a given one, their `log_ratio` ever
exceeds log(1 / p) with a probability of at most p, however often one looks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

OFTEN = 0.9
"""Share of the steps in which it happens if it does in most of them."""
NEGLIGIBLE = 1e-3
"""Differences between values that do not count, such as rounding, as a share of their median."""
CLIPPED = 5.0
"""Median deviations from the median by which a value counts, at most: one of a heavy tail would
hide how much the others resemble each other."""


def log_ratio(happened: Sequence[bool], usual: float) -> float:
    """Return the logarithm of how many times as probable this is if it happens with the probability
    OFTEN in each step than if it does with the probability `usual`."""
    yes = sum(happened)
    no = len(happened) - yes
    return yes * math.log(OFTEN / usual) + no * math.log((1 - OFTEN) / (1 - usual))


def begin_of_most(happened: Sequence[bool], usual: float) -> int:
    """Return the index since which it has happened in most steps; their number: in none.

    That is where the cumulated logarithm of the ratio was not positive for the last time (E. S.
    Page, Continuous inspection schemes, 1954).
    """
    yes, no = log_ratio([True], usual), log_ratio([False], usual)
    begin, cumulated = 0, 0.0
    for at, happens in enumerate(happened):
        cumulated += yes if happens else no
        if cumulated <= 0:
            begin, cumulated = at + 1, 0.0
    return begin


def correlation_time(*parts: Sequence[float]) -> float:
    """Return how many values correspond to one independent value: what resembles the values before
    it does not count in full. The parts may have different means.

    Correlations are added up from lag to lag while two of them together are notable (C. J. Geyer,
    Practical Markov Chain Monte Carlo, 1992: initial positive sequence).
    """
    known = [part for part in parts if part]
    off = [each for part in known for each in _clipped_differences(part)]
    count, total = len(off), math.fsum(each * each for each in off)
    usual = max(abs(median(part)) for part in known)
    if total <= count * (NEGLIGIBLE * usual) ** 2:
        return 1.0

    def correlation(lag: int) -> float:
        return math.fsum(this * after for this, after in zip(off, off[lag:], strict=False)) / total

    by_chance = 1 / math.sqrt(count)
    time = 1.0
    for lag in range(1, count // 2, 2):
        pair = correlation(lag) + correlation(lag + 1) - by_chance
        if pair <= 0:
            break
        time += 2 * pair
    return time


def _clipped_differences(values: Sequence[float]) -> list[float]:
    """Return how much values differ from their mean, without what is far off."""
    middle = median(values)
    most = CLIPPED * median(abs(each - middle) for each in values)
    clipped = [min(max(each, middle - most), middle + most) for each in values]
    mean = fmean(clipped)
    return [each - mean for each in clipped]
