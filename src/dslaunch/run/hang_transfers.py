"""Ranks that wait for each other in transfers between two ranks. Pure.

Each rank of a circle sends to the next one, or each receives from it: none of them can complete
its transfer, nor can ranks that wait for one of them (NVIDIA/nccl#479: both ranks of a pair send
first). A rank that sends to one that receives from it is no such circle: the transfer is on its
way, or their tags, groups or sizes differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dslaunch.run.collectives import Transfer
from dslaunch.run.hang_situation import Situation
from dslaunch.run.hang_verdict import HangCode, HangVerdict, Side
from dslaunch.run.rank_views import RankView, place_of


def circle_of_transfers(situation: Situation) -> HangVerdict | None:
    """Return the verdict if ranks wait in a circle of equal transfers; None: there is none."""
    transfers = _transfers(situation.views)
    stuck: dict[str, list[int]] = {}
    for circle in _circles(transfers):
        kinds = {transfers[rank].kind for rank in circle}
        if len(kinds) == 1:
            stuck.setdefault(kinds.pop(), []).extend(circle)
    if not stuck:
        return None
    sides = [_side(kind, sorted(ranks), situation) for kind, ranks in stuck.items()]
    sides.sort(key=lambda side: (len(side.ranks), side.ranks))
    ranks = sorted(rank for side in sides for rank in side.ranks)
    return HangVerdict(
        code=HangCode.ONE_WAY,
        ranks=tuple(situation.views[rank].source for rank in ranks),
        place=sides[0].place,
        waiting=tuple(sorted(situation.waiting.difference(ranks))),
        operation=sides[0].operation,
        sides=tuple(sides),
    )


def _side(kind: str, ranks: Sequence[int], situation: Situation) -> Side:
    return Side(ranks=tuple(ranks), operation=kind, place=place_of(situation.views[ranks[0]]))


def _transfers(views: Mapping[int, RankView]) -> dict[int, Transfer]:
    """Return the transfers that ranks wait in, by rank."""
    return {
        rank: view.record.transfer
        for rank, view in views.items()
        if view.record is not None and view.record.transfer is not None
    }


def _circles(transfers: Mapping[int, Transfer]) -> list[list[int]]:
    """Return the ranks of each circle. From each rank leads at most one way."""
    found = []
    visited: set[int] = set()
    for first in transfers:
        way: list[int] = []
        rank: int | None = first
        while rank is not None and rank in transfers and rank not in visited:
            visited.add(rank)
            way.append(rank)
            rank = transfers[rank].peer
        if rank in way:
            found.append(way[way.index(rank) :])
    return found
