"""How often something happens by chance: the binomial distribution in logarithms. Pure.

A test of signs holds for any distribution of what is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

NEGLIGIBLE = 1e-3
"""Differences between values that do not count, such as rounding, as a share of their median."""
CLIPPED = 5.0
"""Median deviations from the median by which a value counts, at most: one of a heavy tail would
hide how much the others resemble each other."""


def log_of_at_least(often: int, of: int, probability: float) -> float:
    """Return the logarithm of the probability of at least so many of independent events.

    Of a thousand events, the binomial coefficient itself is larger than any float.
    """
    yes, no = math.log(probability), math.log1p(-probability)
    logs = [
        log_of_choices(of, count) + count * yes + (of - count) * no
        for count in range(often, of + 1)
    ]
    return _log_of_sum(logs)


def log_of_choices(of: int, size: int) -> float:
    """Return the logarithm of the binomial coefficient: how many sets of that size there are."""
    return math.lgamma(of + 1) - math.lgamma(size + 1) - math.lgamma(of - size + 1)


def log_of_largest(largest: int, count: int, others: int) -> float:
    """Return the logarithm of the probability that at least so many of `count` values are among the
    `count` largest of these and of `others` like them: a hypergeometric distribution."""
    logs = [
        log_of_choices(count, found) + log_of_choices(others, count - found)
        for found in range(max(largest, count - others), count + 1)
    ]
    return _log_of_sum(logs) - log_of_choices(count + others, count)


def _log_of_sum(logs: Sequence[float]) -> float:
    greatest = max(logs)
    return greatest + math.log(math.fsum(math.exp(each - greatest) for each in logs))


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
