"""The events that name the slow ranks of a run, each once."""

from __future__ import annotations

import time
from itertools import groupby
from operator import attrgetter

from dslaunch.run.events import Event
from dslaunch.run.slower_rank import SlowerRank
from dslaunch.run.stragglers import Streak
from dslaunch.run.usage_monitor import UsageSample

CLOSE = 2.0
"""Seconds between two measurements while it must be found out whether a rank is slow."""
STEPS_BETWEEN = 5.0
"""Steps between two measurements otherwise: a slow rank shall be named within 20."""
NODES_PER_SECOND = 16.0
"""Nodes that are measured in a second at most, unless a rank may be slow: each takes time here."""
MOST_CLOSE = 30
"""Measurements in a row that are made closely: evidence that is not sufficient by then may remain
so, as in a training that has stopped to make steps."""


class SlowRanks:
    """Finds the slow ranks of one attempt of a run in samples of what its nodes use."""

    def __init__(self) -> None:
        self._streak = Streak()
        self._named: set[int] = set()
        self._latest: UsageSample | None = None

    @property
    def interval(self) -> float | None:
        """Return the seconds between two measurements; None: as usual."""
        if self.undecided:
            return CLOSE
        if self._latest is None:
            return None
        wanted = [_by_steps(self._latest), _by_collectives(self._latest)]
        shortest = min((each for each in wanted if each is not None), default=None)
        if shortest is None:
            return None
        return max(CLOSE, len(self._latest.nodes) / NODES_PER_SECOND, shortest)

    @property
    def undecided(self) -> bool:
        """Return whether a rank may be slow, so that the next measurements should be close."""
        streak = self._streak
        is_training = streak.step is not None
        return is_training and streak.measurements < MOST_CLOSE and bool(self._new(streak.slower))

    def take(self, sample: UsageSample) -> tuple[Event, ...]:
        """Return an event for each node with ranks that are now known to be slow."""
        self._latest, self._streak = sample, self._streak.after(sample)
        found = sorted(self._new(self._streak.established), key=attrgetter("host", "rank"))
        self._named.update(each.rank for each in found)
        return tuple(
            Event(time.time(), "slow", host, slower=tuple(ranks))
            for host, ranks in groupby(found, key=attrgetter("host"))
        )

    def _new(self, slower: tuple[SlowerRank, ...]) -> tuple[SlowerRank, ...]:
        return tuple(each for each in slower if each.rank not in self._named)


def _by_steps(sample: UsageSample) -> float | None:
    """Return the seconds between two measurements, by the steps that the ranks print."""
    progress = sample.progress
    if progress is None or progress.step is None:
        return None
    if not progress.steps_per_second:
        return CLOSE  # the next step tells how long one takes
    return STEPS_BETWEEN / progress.steps_per_second


def _by_collectives(sample: UsageSample) -> float | None:
    """Return the seconds between two measurements, by the collectives of the ranks."""
    return sample.lateness_interval if sample.lateness is not None else None
