"""Which ranks the others wait for, by when all of them enter the same collectives. Pure.

A collective such as an all-reduce completes when its last rank has entered, so the time from the
second last entry to the last one is lost for all. What is added up is the lateness of a training
step: collectives that overlap the backward pass (the buckets of DDP) carry one delay along, and
count once; where the ranks wait for each other, the delays of one step add up.

A rank is named by a test that holds for any distribution of step times: if all ranks are equal,
each is the last one equally often. The delay must also exceed what the clocks of the nodes may be
off, and be a notable part of the step: a rank that is late by a hundredth all the time is certain,
and not worth a message.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import pairwise
from statistics import fmean, median

STEPS = (32, 48, 96)
"""Steps of training that are judged together, at least: more where fewer are not sufficient."""
SECONDS = 3.0
"""Seconds that they take, at least: what else a node does for a second is no slow rank."""
LATE = 0.05
"""Share of the step time by which a slow rank is later than the median of the others, at least."""
LEAST_COST = 0.02
"""Share of the step time for which all others wait for it, at least."""
MOST_STEPS = 0.6
"""Share of the steps in which it is the last one, at least."""
FALSE_ALARMS, LOOKS = 1e-4, 100_000
"""Probability that a rank of a sound run is named, and the looks during which that holds: a run of
two to ten days."""
CARRIED = 0.5
"""Share of a delay that is still there at the next collective, at least, if the ranks have not
waited for each other in between."""
MOST_COLLECTIVES = 200
"""Collectives of one step, at most."""
SHORTEST_STEP = 1e-6
"""Seconds: shorter ones are no training."""
SUSPECT_STEPS = 12
"""The latest steps by which a rank may be slow, before that is certain."""
NEGLIGIBLE = 1e-3
"""Differences between the delays of steps that do not count, as a share of their mean."""
SAME_KIND = 0.9
"""Share of collectives that are of the same kind one step later, at least."""
LESS_ALIKE, BY_CHANCE, MOST_LESS_ALIKE = 0.4, 0.02, 0.15
"""How much less alike shorter steps may be than those that are most alike: as a share of the
difference that is left there, and of the pauses; and at most, of the pauses, since a long pause of
one rank is a difference in any case."""


@dataclass(frozen=True, slots=True)
class EnteredCollective:
    """One collective of a group that all ranks have entered."""

    number: int
    """In the order of the group, by which all ranks call it the same."""
    kind: str
    """Operation and size: equal for the same place of the program."""
    entered: tuple[float, ...]
    """When each rank has entered, in seconds; in the order of the group's ranks."""
    all_wait: bool = True
    """Whether it completes in no rank before all have entered; a broadcast does."""


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """The ranks of a process group, and what they have done together."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    """The node of each rank."""
    collectives: Sequence[EnteredCollective]
    """By number; some may be missing."""
    clock_errors: Mapping[str, float]
    """By how many seconds the clock of a node may be off."""


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that the others wait for."""

    rank: int
    host: str
    cost: float
    """Share of the step time for which all others wait for it."""


@dataclass(frozen=True, slots=True)
class StepLateness:
    """By how much each rank was late in each step."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    steps: tuple[tuple[float, ...], ...]
    """Seconds after the median rank, per step and rank."""
    seconds: float
    """Time of one step, as a median."""
    waits: int
    """How often in one step the ranks wait for each other."""

    def shares(self, latest: int) -> tuple[float, ...]:
        """Return the median lateness of each rank in the latest steps, as a share of the step."""
        columns = zip(*self.steps[-latest:], strict=True)
        return tuple(median(column) / self.seconds for column in columns)


@dataclass(frozen=True, slots=True)
class Lateness:
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
        found = step_lateness(group)
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
    found = step_lateness(group)
    return () if found is None else slow_in(found, group.clock_errors)


# ---------------------------------------------------------------- steps


def step_lateness(group: GroupHistory) -> StepLateness | None:
    """Return how late each rank was in each step; None: the steps cannot be told apart yet."""
    if len(group.ranks) < 2:
        return None
    period = step_length(group.collectives[-3 * MOST_COLLECTIVES :])
    if period is None:
        return None
    seconds = _step_seconds(group.collectives[-3 * MOST_COLLECTIVES :], period)
    if seconds is None:
        return None
    steps_kept = max(STEPS[-1], math.ceil(SECONDS / seconds)) + 2
    collectives = group.collectives[-steps_kept * period :]
    places = _places(collectives, period)
    if not places:
        return None
    waits = _where_ranks_wait(places, period)
    steps: defaultdict[int, list[tuple[float, ...]]] = defaultdict(list)
    for place in waits:
        for number, late in place.late.items():
            steps[number // period].append(late)
    complete = sorted(step for step, several in steps.items() if len(several) == len(waits))
    if not complete:
        return None
    return StepLateness(
        ranks=group.ranks,
        hosts=group.hosts,
        steps=tuple(_added(steps[step]) for step in complete),
        seconds=seconds,
        waits=len(waits),
    )


def step_length(collectives: Sequence[EnteredCollective]) -> int | None:
    """Return how many collectives a step has: the shortest period of their kinds and of the time
    between them; None: too few are known, or they do not repeat.

    Kinds alone do not show it, since all buckets of a model may have the same size.
    """
    kinds = {each.number: each.kind for each in collectives}
    pauses = _pauses(collectives)
    if not pauses:
        return None
    usual = fmean(pauses.values())
    differences = {}
    for period in range(1, min(MOST_COLLECTIVES, len(collectives) // 3) + 1):
        if _alike(kinds, period):
            difference = _mean_difference(pauses, period)
            if difference is not None:
                differences[period] = difference
    if not differences or usual <= 0:
        return None
    least = min(differences.values())
    close = least + min(LESS_ALIKE * least + BY_CHANCE * usual, MOST_LESS_ALIKE * usual)
    return min(period for period, difference in differences.items() if difference <= close)


def _pauses(collectives: Sequence[EnteredCollective]) -> dict[int, float]:
    """Return the seconds from each collective to the next one, for the median rank."""
    pauses = {}
    for this, after in pairwise(collectives):
        if after.number == this.number + 1:
            pauses[this.number] = median(after.entered) - median(this.entered)
    return pauses


def _alike(kinds: Mapping[int, str], period: int) -> bool:
    pairs = [(kind, kinds[at + period]) for at, kind in kinds.items() if at + period in kinds]
    same = sum(this == other for this, other in pairs)
    return bool(pairs) and same >= SAME_KIND * len(pairs)


def _mean_difference(pauses: Mapping[int, float], period: int) -> float | None:
    """Return how much the pauses differ from those one period later, in seconds."""
    differences = [
        abs(pause - pauses[at + period]) for at, pause in pauses.items() if at + period in pauses
    ]
    return fmean(differences) if differences else None


Late = dict[int, tuple[float, ...]]
"""How late each rank was, by the number of the collective."""


@dataclass(frozen=True, slots=True)
class _Place:
    """One place of the step, at which all ranks wait for the last one."""

    at: int
    """Its number from 0 to the number of collectives of a step - 1."""
    late: Late
    following: int
    """After how many collectives the next such place comes."""


def _places(collectives: Sequence[EnteredCollective], period: int) -> list[_Place]:
    """Return the lateness at each place of a step, without collectives that are out of line."""
    by_place: defaultdict[int, list[EnteredCollective]] = defaultdict(list)
    for each in collectives:
        by_place[each.number % period].append(each)
    found: dict[int, Late] = {}
    for at, several in sorted(by_place.items()):
        usual = Counter(each.kind for each in several).most_common(1)[0][0]
        alike = [each for each in several if each.kind == usual]
        if alike[0].all_wait:
            found[at] = {each.number: _lateness(each.entered) for each in alike}
    next_places = [*found, *(at + period for at in found)][1:]
    return [
        _Place(at, late, following - at)
        for (at, late), following in zip(found.items(), next_places, strict=False)
    ]


def _lateness(entered: Sequence[float]) -> tuple[float, ...]:
    middle = median(entered)
    return tuple(time - middle for time in entered)


def _where_ranks_wait(places: Sequence[_Place], period: int) -> list[_Place]:
    """Return the places at which the ranks wait for each other: what a rank was late there, it is
    not at the next one.

    The changes from step to step are compared, since a slow rank is late everywhere.
    """
    changes = [_changes(place.late, period) for place in places]
    carried = [
        _carried(changes[at], changes[(at + 1) % len(places)], place.following)
        for at, place in enumerate(places)
    ]
    waits = [place for place, share in zip(places, carried, strict=True) if share < CARRIED]
    return waits or [places[carried.index(min(carried))]]


def _changes(late: Late, period: int) -> Late:
    return {
        number: tuple(now - then for now, then in zip(seconds, late[number - period], strict=True))
        for number, seconds in late.items()
        if number - period in late
    }


def _carried(changes: Late, after: Late, following: int) -> float:
    """Return which share of the changes at one place is there at the next one (least squares)."""
    both, own = 0.0, 0.0
    for number, seconds in changes.items():
        then = after.get(number + following)
        if then is not None:
            both += sum(a * b for a, b in zip(seconds, then, strict=True))
            own += sum(a * a for a in seconds)
    return both / own if own > 0 else 1.0


def _step_seconds(collectives: Sequence[EnteredCollective], period: int) -> float | None:
    times = {each.number: median(each.entered) for each in collectives}
    steps = [times[at + period] - time for at, time in times.items() if at + period in times]
    seconds = median(steps) if steps else 0.0
    return seconds if seconds >= SHORTEST_STEP else None


def _added(several: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(map(math.fsum, zip(*several, strict=True)))


# ---------------------------------------------------------------- decision


def slow_in(lateness: StepLateness, clock_errors: Mapping[str, float]) -> tuple[LateRank, ...]:
    """Return the ranks that the others wait for in the latest steps, by their number."""
    enough = math.ceil(SECONDS / lateness.seconds)
    for steps in dict.fromkeys(max(steps, enough) for steps in STEPS):
        if len(lateness.steps) < steps:
            break
        found = _slow_ranks(lateness, lateness.steps[-steps:], clock_errors)
        if found:
            return found
    return ()


def _slow_ranks(
    lateness: StepLateness, steps: Sequence[tuple[float, ...]], clock_errors: Mapping[str, float]
) -> tuple[LateRank, ...]:
    """Return the largest set of ranks of which each is later than all ranks outside of it."""
    usual = [median(column) for column in zip(*steps, strict=True)]
    latest_first = sorted(range(len(usual)), key=lambda at: -usual[at])
    for size in range(len(usual) // 2, 0, -1):
        slow, others = latest_first[:size], latest_first[size:]
        late = usual[slow[-1]] - median(usual[at] for at in others)
        if late < LATE * lateness.seconds or not _is_minority(slow, lateness.hosts):
            continue
        # of thousands of ranks, only few sets can be compared with all others
        if not _stands_out(slow[-1], others[0], steps, lateness.seconds):
            continue
        found = _delays(slow, others, steps, lateness, clock_errors)
        log_sets = _log_of_sets(len(usual), size)
        if all(_is_slow(delay, others=len(others), log_sets=log_sets) for delay in found):
            return tuple(
                LateRank(lateness.ranks[at], lateness.hosts[at], round(delay.cost, 3))
                for at, delay in sorted(zip(slow, found, strict=True))
            )
    return ()


def _stands_out(at: int, other: int, steps: Sequence[tuple[float, ...]], seconds: float) -> bool:
    """Return whether a rank is later than one other rank as it must be later than all others."""
    delays = [step[at] - step[other] for step in steps]
    return _is_notable(delays, _mean_cost(delays, seconds))


def _is_minority(slow: Sequence[int], hosts: Sequence[str]) -> bool:
    if 2 * len(slow) < len(hosts):
        return True
    return 2 * len(slow) == len(hosts) and len({hosts[at] for at in slow}) == 1


@dataclass(frozen=True, slots=True)
class _Delay:
    """How much later than all others a rank was."""

    certain: tuple[float, ...]
    """In each step, in seconds, at least: whatever the clocks show."""
    cost: float
    """On average, as a share of the step time."""


def _delays(
    slow: Sequence[int],
    others: Sequence[int],
    steps: Sequence[tuple[float, ...]],
    lateness: StepLateness,
    clock_errors: Mapping[str, float],
) -> list[_Delay]:
    """Return the delays of ranks. A clock is off each time that the ranks wait for each other."""
    hosts = lateness.hosts
    errors = {host: lateness.waits * clock_errors[host] for host in set(hosts)}
    latest = [_latest_of(others, step, hosts, errors) for step in steps]
    found = []
    for at in slow:
        host = hosts[at]
        certain = tuple(
            step[at] - other.seen_from(host, errors[host])
            for step, other in zip(steps, latest, strict=True)
        )
        measured = [step[at] - other.last for step, other in zip(steps, latest, strict=True)]
        found.append(_Delay(certain, _mean_cost(measured, lateness.seconds)))
    return found


@dataclass(frozen=True, slots=True)
class _Latest:
    """When the last of several ranks was there in one step."""

    last: float
    by_host: Mapping[str, float]
    """The last one on each node."""
    at_most: Sequence[tuple[float, str]]
    """The two nodes with the last ones if their clocks are off: by how much at most, and which."""

    def seen_from(self, host: str, error: float) -> float:
        """Return when the last one was there at most, by the clock of a node that may be off."""
        elsewhere = [seconds + error for seconds, other in self.at_most if other != host]
        return max(self.by_host.get(host, -math.inf), *elsewhere[:1], -math.inf)


def _latest_of(
    ranks: Sequence[int],
    step: Sequence[float],
    hosts: Sequence[str],
    errors: Mapping[str, float],
) -> _Latest:
    by_host: dict[str, float] = {}
    for at in ranks:
        by_host[hosts[at]] = max(step[at], by_host.get(hosts[at], -math.inf))
    at_most = nlargest(2, ((seconds + errors[host], host) for host, seconds in by_host.items()))
    return _Latest(max(by_host.values()), by_host, at_most)


def _mean_cost(delays: Sequence[float], seconds: float) -> float:
    return fmean(max(0.0, delay) for delay in delays) / seconds


def _is_notable(delays: Sequence[float], cost: float) -> bool:
    """Return whether a rank costs enough, and is the last one in enough of the steps."""
    last = sum(seconds > 0 for seconds in delays) / len(delays)
    return cost >= LEAST_COST and last >= MOST_STEPS


def _is_slow(delay: _Delay, *, others: int, log_sets: float) -> bool:
    """Return whether a rank is the last one too often to be like the others: a sign test.

    `log_sets`: the logarithm of the number of sets of ranks from which the latest one was chosen. A
    step that resembles the one before does not count in full.
    """
    if not _is_notable(delay.certain, delay.cost):
        return False
    steps = len(delay.certain)
    last = sum(seconds > 0 for seconds in delay.certain) / steps
    independent = math.floor(steps * _independent(delay.certain))
    often = math.floor(last * independent)
    by_chance = _log_of_at_least(often, independent, 1 / (others + 1))
    return by_chance + log_sets + math.log(len(STEPS)) <= math.log(FALSE_ALARMS / LOOKS)


def _independent(delays: Sequence[float]) -> float:
    """Return the share of the steps that counts, by the correlation of each with the next one."""
    mean = fmean(delays)
    off = [delay - mean for delay in delays]
    total = sum(each * each for each in off)
    if total <= len(delays) * (NEGLIGIBLE * mean) ** 2:  # such as rounding
        return 1.0
    correlation = sum(this * after for this, after in pairwise(off)) / total
    notable = max(0.0, correlation - 1 / math.sqrt(len(delays)))
    return (1 - notable) / (1 + notable)


def _log_of_at_least(often: int, of: int, probability: float) -> float:
    """Return the logarithm of the probability of at least so many of independent events.

    Of a thousand events, the binomial coefficient itself is larger than any float.
    """
    yes, no = math.log(probability), math.log1p(-probability)
    logs = [
        _log_of_sets(of, count) + count * yes + (of - count) * no for count in range(often, of + 1)
    ]
    largest = max(logs)
    return largest + math.log(math.fsum(math.exp(each - largest) for each in logs))


def _log_of_sets(of: int, size: int) -> float:
    """Return the logarithm of the binomial coefficient: how many sets of that size there are."""
    return math.lgamma(of + 1) - math.lgamma(size + 1) - math.lgamma(of - size + 1)
