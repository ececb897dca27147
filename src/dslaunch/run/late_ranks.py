"""Which ranks the others wait for, by when all of them enter the same collectives. Pure.

A rank is named if it has been late in most steps since one of them, and that is not by chance: a
sequential test (`sequential_test.py`) compares how often it is late with how often it would be if
it were like the others now, or as it was before. Such a rank is named with a probability of at most
FALSE_ALARM for each of its steps: with 8 ranks, in one of a hundred runs of 100,000 steps. That
holds if steps are independent, so those that resemble the step before count less; and for a rank
that is late in half of its steps at random, which is more often than any sound one. Simulated, no
rank of sound runs was named but with noise that lasts for dozens of steps (docs/howto/watch-a-run).

The delay must also exceed what the clocks of the nodes may be off, and be a notable part of the
step: a rank that is late by a hundredth all the time is certain, and not worth a message.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

from msgspec import Struct

from dslaunch.run.collective_steps import GroupHistory, StepLateness, step_lateness
from dslaunch.run.sequential_test import begin_of_most, correlation_time, log_ratio

STEPS = 24
"""Steps of training for which a rank must have been late, at least."""
SECONDS = 2.5
"""Seconds that they take, at least: what else a node does for a second is no slow rank."""
KNOWN_STEPS = 192
"""Steps that are compared: evidence that grows slowly takes more than STEPS."""
LATE = 0.04
"""Share of the step time by which a slow rank is later than the median of the others, at least: as
a median over the latest steps."""
NOTABLE = 0.02
"""Share of the step time from which on a rank is late in a single step."""
LEAST_COST = 0.02
"""Share of the step time for which all others wait for it, at least."""
FALSE_ALARM = 1e-8
"""Probability that a rank is named that is late as often as usual, for each step since which it
may be slow."""
SOMETIMES, HALF = 0.2, 0.5
"""Share of the steps in which a sound rank is late: taken for usual at least, since one that saves
a checkpoint in every tenth step has not done so yet; and at most, since equal ranks are as often
early as late."""
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
        latest = zip(found.ranks, found.shares(STEPS), found.shares(SUSPECT_STEPS), strict=True)
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
    return step_lateness(group, steps=KNOWN_STEPS, seconds=SECONDS)


# ---------------------------------------------------------------- decision


def slow_in(lateness: StepLateness, clock_errors: Mapping[str, float]) -> tuple[LateRank, ...]:
    """Return the ranks that the others wait for in the latest steps, by their number."""
    steps = max(STEPS, math.ceil(SECONDS / lateness.seconds))
    if len(lateness.steps) < steps:
        return ()
    usual = [median(column) for column in zip(*lateness.steps[-steps:], strict=True)]
    candidates = _candidates(usual, lateness.hosts, LATE * lateness.seconds)
    if not candidates:
        return ()
    others = _others(lateness, candidates, _errors(lateness, clock_errors))
    found = []
    for at in sorted(candidates):
        cost = _cost_if_certain(lateness, at, others, steps)
        if cost is not None and cost >= LEAST_COST:
            found.append(LateRank(lateness.ranks[at], lateness.hosts[at], round(cost, 3)))
    return tuple(found)


class _Others(Struct, frozen=True):
    """The ranks that slow ones are compared with, step by step."""

    last: Sequence[float]
    median: Sequence[float]
    late_shares: Sequence[float]
    """Share of them that was late itself."""
    least: Sequence[float]
    """Seconds after their median from which on each rank of the group is late."""


def _others(lateness: StepLateness, candidates: frozenset[int], errors: Sequence[float]) -> _Others:
    members = [at for at in range(len(lateness.ranks)) if at not in candidates]
    entered = [[step[at] for at in members] for step in lateness.steps]
    middle = list(map(median, entered))
    notable = NOTABLE * lateness.seconds
    error = max(errors[at] for at in members)
    compared_with = middle
    if len(members) == 1:  # it is its own median
        (candidate,) = candidates
        compared_with = [step[candidate] for step in lateness.steps]
    late_shares = [
        fmean(time - then >= notable + 2 * error for time in step)
        for step, then in zip(entered, compared_with, strict=True)
    ]
    return _Others(
        last=list(map(max, entered)),
        median=middle,
        late_shares=late_shares,
        least=[notable + error + own for own in errors],
    )


def _cost_if_certain(
    lateness: StepLateness, at: int, others: _Others, least_steps: int
) -> float | None:
    """Return the share of the step time for which all others wait for a rank; None: it may be late
    by chance."""
    own = [step[at] for step in lateness.steps]
    delays = list(map(operator.sub, own, others.median))
    late = [seconds >= others.least[at] for seconds in delays]
    begin = begin_of_most(late, HALF)
    if len(late) - begin < least_steps:
        return None
    usual = _usual(late[:begin], others.late_shares[begin:])
    evidence = log_ratio(late[begin:], usual)
    independent_evidence = evidence / correlation_time(delays[:begin], delays[begin:])
    if independent_evidence < -math.log(FALSE_ALARM):
        return None
    after_last = map(operator.sub, own[begin:], others.last[begin:])
    return fmean(max(0.0, seconds) for seconds in after_last) / lateness.seconds


def _usual(before: Sequence[bool], others_since: Sequence[float]) -> float:
    """Return in which share of the steps a rank may be late by chance: as it was itself before, and
    as the others are since then."""
    if len(before) < STEPS:
        return HALF
    return min(HALF, max(SOMETIMES, fmean(before), fmean(others_since)))


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
