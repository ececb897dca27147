"""Which ranks the others wait for, by when all of them enter the same collectives. Pure.

A rank is named if its delays are not by chance, by tests that hold for any distribution of step
times. If all ranks are equal, each is the last one equally often; and if nothing has changed, a
rank is as late as in the steps before. One of the two must be impossible. If the steps of a rank
only vary more than those of the others, it is later than their median in half of the steps: that
must be impossible too. The delay must also exceed what the clocks of the nodes may be off, and be a
notable part of the step: a rank that is late by a hundredth all the time is certain, and not worth
a message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

from msgspec import Struct

from dslaunch.run.collective_steps import GroupHistory, StepLateness, step_lateness
from dslaunch.run.sign_test import (
    correlation_time,
    log_of_at_least,
    log_of_choices,
    log_of_largest,
)

STEPS = (32, 40, 48, 72, 108, 192)
"""Steps of training that are judged together, at least: more where fewer are not sufficient."""
UNCLEAR = 1.5
"""How many times as many steps are not taken for those before: a rank may have become slow in
them. It is the largest ratio of numbers that follow each other in `STEPS`, or nearly."""
SECONDS = 3.0
"""Seconds that they take, at least: what else a node does for a second is no slow rank."""
LATE = 0.04
"""Share of the step time by which a slow rank is later than the median of the others, at least."""
LEAST_COST = 0.02
"""Share of the step time for which all others wait for it, at least."""
MOST_STEPS = 0.5
"""Share of the steps in which it is the last one, at least."""
FALSE_ALARMS, LOOKS = 1e-4, 100_000
"""Probability that a rank of equal ones is named, and the looks during which that holds: a run of
two to ten days."""
BY_VARIATION = 1e-5
"""Probability that steps of a rank which only vary more than those of the others name it, each time
that some are judged."""
SUSPECT_STEPS = 12
"""The latest steps by which a rank may be slow, before that is certain."""


class LateRank(Struct, frozen=True):
    """A rank that the others wait for."""

    rank: int
    host: str
    cost: float
    """Share of the step time for which all others wait for it."""


class Lateness(Struct, frozen=True):
    """How late the ranks of a run are."""

    shares: Mapping[int, float]
    """By how much each rank was later than the median one in the latest steps, as a share of the
    step time; of several groups, the one in which it was the latest."""
    slow: tuple[LateRank, ...]
    """The ranks that the others wait for, by their number."""
    suspected: bool
    """Whether a rank may be slow that is not in `slow`."""
    step_seconds: float


def lateness_of(groups: Iterable[GroupHistory]) -> Lateness | None:
    """Return how late all ranks are; None: no group has steps that can be told apart."""
    shares: dict[int, float] = {}
    slow: dict[int, LateRank] = {}
    suspects: set[int] = set()
    seconds = []
    for group in groups:
        found = _step_lateness(group)
        if found is None:
            continue
        seconds.append(found.seconds)
        for each in slow_in(found, group.clock_errors):
            if each.rank not in slow or slow[each.rank].cost < each.cost:
                slow[each.rank] = each
        latest = zip(found.ranks, found.shares(STEPS[0]), found.shares(SUSPECT_STEPS), strict=True)
        for rank, share, lately in latest:
            shares[rank] = max(share, shares.get(rank, share))
            if lately >= LATE:
                suspects.add(rank)
    if not seconds:
        return None
    return Lateness(
        shares=shares,
        slow=tuple(slow[rank] for rank in sorted(slow)),
        suspected=not suspects <= set(slow),
        step_seconds=max(seconds),
    )


def late_ranks(group: GroupHistory) -> tuple[LateRank, ...]:
    """Return the slow ranks of a group, by their number: fewer than half of all, or exactly half if
    these are all ranks of one node."""
    found = _step_lateness(group)
    return () if found is None else slow_in(found, group.clock_errors)


def _step_lateness(group: GroupHistory) -> StepLateness | None:
    return step_lateness(group, steps=STEPS[-1], seconds=SECONDS)


# ---------------------------------------------------------------- decision


def slow_in(lateness: StepLateness, clock_errors: Mapping[str, float]) -> tuple[LateRank, ...]:
    """Return the ranks that the others wait for in the latest steps, by their number."""
    enough = math.ceil(SECONDS / lateness.seconds)
    for latest in dict.fromkeys(max(steps, enough) for steps in STEPS):
        if len(lateness.steps) < latest:
            break
        found = _slow_ranks(lateness, latest, clock_errors)
        if found:
            return found
    return ()


def _slow_ranks(
    lateness: StepLateness, latest: int, clock_errors: Mapping[str, float]
) -> tuple[LateRank, ...]:
    """Return those of the candidates that are later than all other ranks in the latest steps."""
    usual = [median(column) for column in zip(*lateness.steps[-latest:], strict=True)]
    candidates = _candidates(usual, lateness.hosts, LATE * lateness.seconds)
    if not candidates:
        return ()
    others = [at for at in range(len(usual)) if at not in candidates]
    entered = [[step[at] for at in others] for step in lateness.steps]
    last, middle = list(map(max, entered)), list(map(median, entered))
    errors = _errors(lateness, clock_errors)
    error_of_others = max(errors[at] for at in others)
    log_choices = _log_of_choices(len(usual), len(candidates))
    found = []
    for at in sorted(candidates):
        own = [step[at] for step in lateness.steps]
        error = errors[at] + error_of_others
        after_last = _delays(own, last, latest, error)
        after_middle = _delays(own, middle, latest, error)
        cost = fmean(max(0.0, seconds) for seconds in after_last.latest) / lateness.seconds
        if cost >= LEAST_COST and _is_certain(after_last, after_middle, len(others), log_choices):
            found.append(LateRank(lateness.ranks[at], lateness.hosts[at], round(cost, 3)))
    return tuple(found)


class _Delays(Struct, frozen=True):
    """By how many seconds a rank was later than others, in the latest steps and in those before."""

    latest: Sequence[float]
    before: Sequence[float]
    clock_error: float
    """By how much all of them may be off."""
    correlation_time: float
    """How many of them correspond to one independent value."""

    @property
    def share(self) -> float:
        """Return the share of the latest steps in which the rank was later."""
        return sum(seconds > self.clock_error for seconds in self.latest) / len(self.latest)

    def log_by_chance(self, probability: float) -> float:
        """Return the logarithm of the probability that it is later in as many steps, if it is with
        this probability in each of them."""
        count = self._independent(self.latest)
        return log_of_at_least(math.floor(self.share * count), count, probability)

    def log_as_before(self) -> float:
        """Return the logarithm of the probability that it is later than in the steps before in as
        many steps, if nothing has changed."""
        at_least = [seconds - self.clock_error for seconds in self.latest]
        at_most = [seconds + self.clock_error for seconds in self.before]
        among_largest = sorted((*at_least, *at_most))[-len(at_least)]
        share = sum(seconds >= among_largest for seconds in at_least) / len(at_least)
        count, before = self._independent(self.latest), self._independent(self.before)
        return log_of_largest(math.floor(share * count), count, before)

    def _independent(self, values: Sequence[float]) -> int:
        return math.floor(len(values) / self.correlation_time)


def _delays(
    own: Sequence[float], others: Sequence[float], latest: int, clock_error: float
) -> _Delays:
    """Return how much later one rank was than others. The steps in which it may have become slow
    are left out."""
    seconds = [this - other for this, other in zip(own, others, strict=True)]
    now, before = seconds[-latest:], seconds[: -round(latest * UNCLEAR)]
    return _Delays(now, before, clock_error, correlation_time(before, now))


def _is_certain(
    after_last: _Delays, after_middle: _Delays, others: int, log_choices: float
) -> bool:
    """Return whether a rank is neither like the others, nor as before, nor one whose steps only
    vary more."""
    if after_last.share < MOST_STEPS:
        return False
    if after_middle.log_by_chance(0.5) > math.log(BY_VARIATION):
        return False
    tests = after_last.log_by_chance(1 / (others + 1)), after_middle.log_as_before()
    log_looks = math.log(LOOKS * len(STEPS) * len(tests)) + log_choices
    return min(tests) + log_looks <= math.log(FALSE_ALARMS)


def _candidates(usual: Sequence[float], hosts: Sequence[str], least: float) -> frozenset[int]:
    """Return the largest minority of ranks of which each is later by `least` than the median of the
    others, as a median over the steps (`usual`)."""
    latest_first = sorted(range(len(usual)), key=lambda at: -usual[at])
    for size in range(len(usual) // 2, 0, -1):
        slow, others = latest_first[:size], latest_first[size:]
        late = usual[slow[-1]] - median(usual[at] for at in others)
        if late >= least and _is_minority(slow, hosts):
            return frozenset(slow)
    return frozenset()


def _is_minority(slow: Sequence[int], hosts: Sequence[str]) -> bool:
    if 2 * len(slow) < len(hosts):
        return True
    return 2 * len(slow) == len(hosts) and len({hosts[at] for at in slow}) == 1


def _errors(lateness: StepLateness, clock_errors: Mapping[str, float]) -> list[float]:
    """Return by how many seconds the lateness of each rank may be off: a clock is off each time
    that the ranks wait for each other. Ranks of one node have one clock."""
    if len(set(lateness.hosts)) == 1:
        return [0.0] * len(lateness.hosts)
    return [lateness.waits * clock_errors[host] for host in lateness.hosts]


def _log_of_choices(ranks: int, candidates: int) -> float:
    """Return the logarithm of how many choices there are: of the candidates, of their number, and
    of one of them."""
    sets = log_of_choices(ranks, candidates)
    return sets + math.log(candidates * max(1, ranks // 2))
