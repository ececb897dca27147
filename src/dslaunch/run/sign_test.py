"""How often something happens by chance: the binomial distribution in logarithms. Pure.

A test of signs holds for any distribution of what is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

NEGLIGIBLE = 1e-3
"""Differences between values that do not count, such as rounding, as a share of their mean."""
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
    largest = max(logs)
    return largest + math.log(math.fsum(math.exp(each - largest) for each in logs))


def log_of_choices(of: int, size: int) -> float:
    """Return the logarithm of the binomial coefficient: how many sets of that size there are."""
    return math.lgamma(of + 1) - math.lgamma(size + 1) - math.lgamma(of - size + 1)


def independent(values: Sequence[float]) -> int:
    """Return to how many independent values these correspond: what resembles the values before it
    does not count in full.

    Correlations are added up from lag to lag while two of them together are notable (C. J. Geyer,
    Practical Markov Chain Monte Carlo, 1992: initial positive sequence).
    """
    middle = median(values)
    most = CLIPPED * median(abs(each - middle) for each in values)
    clipped = [min(max(each, middle - most), middle + most) for each in values]
    mean, count = fmean(clipped), len(clipped)
    off = [each - mean for each in clipped]
    total = math.fsum(each * each for each in off)
    if total <= count * (NEGLIGIBLE * mean) ** 2:
        return count

    def correlation(lag: int) -> float:
        return math.fsum(this * after for this, after in zip(off, off[lag:], strict=False)) / total

    by_chance = 1 / math.sqrt(count)
    time = 1.0
    for lag in range(1, count // 2, 2):
        pair = correlation(lag) + correlation(lag + 1) - by_chance
        if pair <= 0:
            break
        time += 2 * pair
    return math.floor(count / time)
