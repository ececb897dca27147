"""What ranks did that have lost each other: whether they were in different collectives, or some had
ended. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from dslaunch.protocol.rehearsal import CollectiveBegun, Ended, Raised
from dslaunch.rehearsal.failure import OF_OTHER_DATA
from dslaunch.rehearsal.ranks import Ranks
from dslaunch.run.hang_verdict import HangCode, HangVerdict, Place, Side
from dslaunch.run.known_endings import built_in
from dslaunch.run.outcome import Outcome

MOST_NOTED = 400
"""Collectives that a rank notes (`node/hook_order.py`): of later ones nothing is known."""
COMPARES_MODELS = "DistributedDataParallel()"
"""The operation that is noted when a model is wrapped (`node/hook_order.py`)."""


def was_left_by_another(outcome: Outcome) -> bool:
    """Return whether a run has failed since a rank has lost another one, or has got other data from
    it than it waited for."""
    known = built_in().get(outcome.ending or "")
    return known is not None and (known.secondary or known.code in OF_OTHER_DATA)


def ended_before_others(ranks: Ranks) -> Ranks:
    """Return the ranks whose scripts have ended without an error, if those of others had not."""
    ended = tuple(rank for rank in ranks if rank.last(Ended) and not rank.last(Raised))
    return ended if len(ended) < len(ranks) else ()


def in_different_collectives(ranks: Ranks) -> HangVerdict | None:
    """Return the collectives that ranks have begun instead of each other; None: none are known.
    With another backend the ranks would wait for each other in them.

    Ranks may call one collective from different lines. That tells something of the last one that
    all have begun, in which they have failed: unless it compares their models, which may differ.
    """
    begun = {rank.rank: rank.every(CollectiveBegun) for rank in ranks}
    in_all = min(map(len, begun.values()), default=0)
    for number in range(in_all):
        of_ranks = {rank: every[number] for rank, every in begun.items()}
        if len({each.operation for each in of_ranks.values()}) > 1:
            return _verdict(ranks, of_ranks)
    if 0 < in_all < MOST_NOTED:
        last = {rank: every[in_all - 1] for rank, every in begun.items()}
        calls = {_call(each) for each in last.values()}
        if len(calls) > 1 and {each.operation for each in last.values()} != {COMPARES_MODELS}:
            return _verdict(ranks, last)
    return None


def _call(begun: CollectiveBegun) -> object:
    """Return what is equal on ranks that have begun a collective by the same code."""
    return begun.operation, begun.file, begun.line, begun.caller, begun.caller_line


def _verdict(ranks: Ranks, begun: Mapping[int, CollectiveBegun]) -> HangVerdict:
    together: dict[object, list[int]] = defaultdict(list)
    for rank, each in begun.items():
        together[_call(each)].append(rank)
    lines = {(each.file, each.line) for each in begun.values()}
    in_library = len(lines) == 1
    sides = [_side(same, begun[same[0]], in_library=in_library) for same in together.values()]
    sides.sort(key=lambda side: (len(side.ranks), side.ranks))
    fewest = sides[0]
    hosts = {rank.rank: rank.host for rank in ranks}
    return HangVerdict(
        code=HangCode.MISMATCH,
        ranks=tuple((hosts[rank], rank) for rank in fewest.ranks),
        place=fewest.place,
        number=begun[fewest.ranks[0]].number,
        sides=tuple(sides),
    )


def _side(ranks: Sequence[int], begun: CollectiveBegun, *, in_library: bool) -> Side:
    """`in_library`: the lines of the script's own code do not tell the sides apart."""
    file, line = begun.file, begun.line
    if in_library and begun.caller is not None:
        file, line = begun.caller, begun.caller_line
    place = Place(file, line or 0, function="") if file is not None else None
    return Side(ranks=tuple(ranks), operation=begun.operation, place=place)
