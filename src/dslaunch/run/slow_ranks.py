"""The events that name the slow ranks of a run, each once."""

from __future__ import annotations

import time
from itertools import groupby
from operator import attrgetter

from dslaunch.run.events import Event
from dslaunch.run.slower_rank import SlowerRank
from dslaunch.run.stragglers import Streak
from dslaunch.run.usage_monitor import UsageSample

MOST_CLOSE = 30
"""Measurements in a row that are made closely: evidence that is not sufficient by then may remain
so, as in a training that has stopped to make steps."""


class SlowRanks:
    """Finds the slow ranks of one attempt of a run in samples of what its nodes use."""

    def __init__(self) -> None:
        self._streak = Streak()
        self._named: set[int] = set()

    @property
    def undecided(self) -> bool:
        """Return whether a rank may be slow, so that the next measurements should be close."""
        streak = self._streak
        is_training = streak.step is not None
        return is_training and streak.measurements < MOST_CLOSE and bool(self._new(streak.slower))

    def take(self, sample: UsageSample) -> tuple[Event, ...]:
        """Return an event for each node with ranks that are now known to be slow."""
        self._streak = self._streak.after(sample)
        found = sorted(self._new(self._streak.established), key=attrgetter("host", "rank"))
        self._named.update(each.rank for each in found)
        return tuple(
            Event(time.time(), "slow", host, slower=tuple(ranks))
            for host, ranks in groupby(found, key=attrgetter("host"))
        )

    def _new(self, slower: tuple[SlowerRank, ...]) -> tuple[SlowerRank, ...]:
        return tuple(each for each in slower if each.rank not in self._named)
