"""Ranks that are in different operations, and will not complete them. Pure.

Members of a group that have entered different operations, sizes, types or roots under the same
number will not complete it, nor will ranks that wait for each other in different groups
(`torch.distributed`, "Flight Recorder": collective mismatch).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from dslaunch.run.collectives import Collective
from dslaunch.run.group_waits import GroupWait, crossed
from dslaunch.run.hang_situation import Situation
from dslaunch.run.hang_verdict import HangCode, HangVerdict, Side
from dslaunch.run.rank_views import place_in, place_of
from dslaunch.run.seen_waits import (
    BETWEEN_TWO,
    JOINING,
    is_blocked,
    is_idle,
    is_seen_waiting,
    seen_operation,
)

_SAME_SIZES = re.compile(r"_?(?:all_?reduce|broadcast|reduce|all_?gather)\w*")
"""Operations whose input has the same number of elements on all ranks. Of others, such as
all_to_all and scatter, it may differ."""


def mismatch_of(situation: Situation) -> HangVerdict | None:
    """Return the verdict if ranks have entered different collectives, under the same number or in
    groups that wait for each other."""
    for each in situation.waits:
        sides = _sides(each, situation)
        if len(sides) > 1:
            final = len({side.operation for side in sides}) > 1
            return _mismatch(each, sides, situation, final=final)
    if not situation.waits or situation.roots:
        return None
    waits = crossed(situation.waits)
    sides = [side for each in waits for side in _sides(each, situation)]
    if len(sides) > 1:
        # operations that were begun asynchronously do not keep a rank from the others
        final = all(is_blocked(situation.views[rank]) for s in sides for rank in s.ranks)
        return _mismatch(waits[0], sides, situation, final=final)
    return _in_other_operations(situation)


def _in_other_operations(situation: Situation) -> HangVerdict | None:
    """Return the verdict if those that have not entered a collective wait for others themselves,
    in operations that only their stacks show."""
    for each in situation.waits:
        seen = [rank for rank in each.missing if is_seen_waiting(situation.views[rank])]
        if seen:
            return _mismatch_with_seen(each, seen, situation)
    return None


def _mismatch_with_seen(each: GroupWait, seen: Sequence[int], situation: Situation) -> HangVerdict:
    """Return the verdict if the stacks of ranks show that they are in other operations."""
    others: dict[str, list[int]] = {}
    for rank in seen:
        operation = seen_operation(situation.views[rank]) or "another operation"
        others.setdefault(operation, []).append(rank)
    unrecorded = [
        Side(
            ranks=tuple(ranks),
            operation=operation,
            peer=_peer(situation, ranks),
            place=place_of(situation.views[ranks[0]]),
        )
        for operation, ranks in others.items()
    ]
    sides = [*_sides(each, situation), *unrecorded]
    # a group is made by all ranks together, and these cannot while they wait in a collective
    joining = others.keys() <= JOINING
    final = joining and all(is_idle(situation.views[rank]) for rank in each.entered)
    return _mismatch(each, sides, situation, final=final)


def _peer(situation: Situation, ranks: Sequence[int]) -> int | None:
    """Return the other rank of the transfer that one rank is in."""
    record = situation.views[ranks[0]].record
    if len(ranks) > 1 or record is None or record.transfer is None:
        return None
    return record.transfer.peer


def _sides(each: GroupWait, situation: Situation) -> list[Side]:
    alike: dict[object, list[int]] = {}
    roots = {rank: entry.root for rank, entry in each.entered.items()}
    differ = None not in roots.values() and len(set(roots.values())) > 1
    for rank, entry in each.entered.items():
        root = entry.root if differ else None
        alike.setdefault((_kind(entry), root), []).append(rank)
    return [
        Side(
            ranks=tuple(ranks),
            operation=each.entered[ranks[0]].operation,
            group=each.group_name,
            sizes=each.entered[ranks[0]].sizes,
            dtypes=each.entered[ranks[0]].dtypes,
            root=each.entered[ranks[0]].root if differ else None,
            place=place_in(situation.views[ranks[0]], each.entered[ranks[0]]),
        )
        for ranks in alike.values()
    ]


def _kind(entry: Collective) -> object:
    """Return what must be equal on all ranks."""
    if not _SAME_SIZES.fullmatch(entry.operation):
        return entry.operation
    elements = sum(math.prod(sizes) for sizes in entry.sizes)
    return entry.operation, elements, entry.dtypes


def _mismatch(
    each: GroupWait,
    sides: list[Side],
    situation: Situation,
    *,
    final: bool = False,
) -> HangVerdict:
    sides = sorted(sides, key=lambda side: (len(side.ranks), side.ranks))
    named, waiting = sides[:1], sides[1:]
    if _is_transfer(sides[0]):
        # both ranks of a transfer are in it; more of them, as in a pipeline, wait for these
        named = [side for side in sides if _is_transfer_of(side, len(sides[0].ranks))]
        waiting = [side for side in sides if not _is_transfer_of(side, len(sides[0].ranks))]
    return HangVerdict(
        code=HangCode.MISMATCH,
        ranks=tuple(situation.views[rank].source for side in named for rank in side.ranks),
        place=sides[0].place,
        waiting=tuple(sorted(rank for side in waiting for rank in side.ranks)),
        operation=sides[-1].operation,
        group=sides[-1].group,
        number=each.number,
        waiting_place=sides[-1].place,
        sides=tuple(sides),
        since=each.since(situation.now),
        final=final or None,
    )


def _is_transfer(side: Side) -> bool:
    return BETWEEN_TWO.fullmatch(side.operation) is not None


def _is_transfer_of(side: Side, ranks: int) -> bool:
    return _is_transfer(side) and len(side.ranks) == ranks
