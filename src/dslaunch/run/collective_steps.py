"""The steps of a training in the collectives of a process group, and how late each rank was. Pure.

A collective such as an all-reduce completes when its last rank has entered, so the time from the
second last entry to the last one is lost for all. What is added up is the lateness of a training
step: collectives that overlap the backward pass (the buckets of DDP) carry one delay along, and
count once; where the ranks wait for each other, the delays of one step add up.
"""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median

from msgspec import Struct
from msgspec.structs import replace

CARRIED = 0.5
"""Share of a delay that is still there at the next collective, at least, if the ranks have not
waited for each other in between."""
MOST_COLLECTIVES = 200
"""Collectives of one step, at most."""
LATEST = 3 * MOST_COLLECTIVES
"""The latest collectives, in which the steps are searched."""
SHORTEST_STEP = 1e-6
"""Seconds: shorter ones are no training."""
SAME_KIND = 0.9
"""Share of collectives that are of the same kind one step later, at least."""
LESS_ALIKE, BY_CHANCE, MOST_LESS_ALIKE = 0.4, 0.02, 0.15
"""How much less alike shorter steps may be than those that are most alike: as a share of the
difference that is left there, and of the pauses; and at most, of the pauses, since a long pause of
one rank is a difference in any case."""


class EnteredCollective(Struct, frozen=True):
    """One collective of a group that all ranks have entered."""

    number: int
    """In the order of the group, by which all ranks call it the same."""
    kind: str
    """Operation and size: equal for the same place of the program."""
    entered: tuple[float, ...]
    """When each rank has entered, in seconds; in the order of the group's ranks."""
    all_wait: bool = True
    """Whether it completes in no rank before all have entered; a broadcast does."""
    interrupted: bool = False
    """Whether others have come between it and the one with the number before."""


class GroupHistory(Struct, frozen=True):
    """The ranks of a process group, and what they have done together."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    """The node of each rank."""
    collectives: Sequence[EnteredCollective]
    """By number; some may be missing."""
    clock_errors: Mapping[str, float]
    """By how many seconds the clock of a node may be off."""


class StepLateness(Struct, frozen=True):
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


def step_lateness(group: GroupHistory, *, steps: int, seconds: float) -> StepLateness | None:
    """Return how late each rank was in each of the latest steps; None: the steps cannot be told
    apart yet. `steps`, `seconds`: how many steps, and how long they take in all, at least."""
    if len(group.ranks) < 2:
        return None
    regular = without_interruptions(group.collectives)
    latest = regular[-LATEST:]
    period = step_length(latest)
    if period is None:
        return None
    of_step = _step_seconds(latest, period)
    if of_step is None:
        return None
    # the first and the last one may be incomplete
    kept = max(steps, math.ceil(seconds / of_step)) + 2
    places = _places(regular[-kept * period :], period)
    if not places:
        return None
    waits = _where_ranks_wait(places, period)
    by_step: defaultdict[int, list[tuple[float, ...]]] = defaultdict(list)
    for place in waits:
        for number, late in place.late.items():
            by_step[number // period].append(late)
    complete = sorted(step for step, several in by_step.items() if len(several) == len(waits))
    if not complete:
        return None
    return StepLateness(
        ranks=group.ranks,
        hosts=group.hosts,
        steps=tuple(_added(by_step[step]) for step in complete),
        seconds=of_step,
        waits=len(waits),
    )


def without_interruptions(
    collectives: Sequence[EnteredCollective],
) -> Sequence[EnteredCollective]:
    """Return collectives without those of kinds that occur in less than half of the steps, such as
    the barrier of a checkpoint; the others are renumbered.

    Otherwise the steps between two checkpoints would be taken for one step, in each of which the
    rank that saves is late.
    """
    latest = collectives[-LATEST:]
    counts = Counter(each.kind for each in latest)
    kinds = [kind for kind, _ in counts.most_common()]
    for size in range(1, len(kinds)):
        usual, rare = kinds[:size], frozenset(kinds[size:])
        most = counts[kinds[size]]
        # each usual kind occurs in every step
        if 2 * most > counts[usual[-1]]:
            continue
        period = step_length(_without(latest, rare))
        steps = len(latest) / period if period is not None else 0.0
        if 2 * most <= steps:
            return _without(collectives, rare)
    return collectives


def _without(
    collectives: Sequence[EnteredCollective], kinds: frozenset[str]
) -> list[EnteredCollective]:
    removed, kept, interrupted = 0, [], False
    for each in collectives:
        if each.kind in kinds:
            removed, interrupted = removed + 1, True
        else:
            number = each.number - removed
            kept.append(replace(each, number=number, interrupted=interrupted))
            interrupted = False
    return kept


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
    """Return the seconds from each collective to the next one, for the rank that takes least: the
    others wait for it, or do what only they do, such as rank 0 when it saves in every tenth step.
    """
    return {
        this.number: min(map(operator.sub, after.entered, this.entered))
        for this, after in pairwise(collectives)
        if after.number == this.number + 1 and not after.interrupted
    }


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


class _Place(Struct, frozen=True):
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
