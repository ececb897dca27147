"""Process groups that ranks have made of other members than the others. Pure.

All ranks must call `new_group` for the same groups in the same order (`torch.distributed`,
"Groups"): each counts them, and that number is the group's name, by which its members find each
other. A member of a group that the others have made under another number waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from dslaunch.run.hang_situation import Situation
from dslaunch.run.hang_verdict import HangCode, HangVerdict, Side
from dslaunch.run.rank_views import RankView, place_of
from dslaunch.run.seen_waits import forms_group, seen_operation

_FORMING = "new_group"


class _Made(Struct):
    """A name under which ranks have made groups, or are about to."""

    by_members: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    """Members -> the ranks that have called `new_group` for these."""
    known_to: set[int] = field(default_factory=set)
    """The ranks that have made one."""


def unlike_groups(situation: Situation) -> HangVerdict | None:
    """Return the verdict if members wait for a process group that others have made of other ranks;
    None: there is none."""
    forming = [
        rank
        for rank, view in situation.views.items()
        if forms_group(view) and seen_operation(view) == _FORMING
    ]
    if not forming:
        return None
    for name, made in _made_groups(situation.views).items():
        members = {rank for ranks in made.by_members for rank in ranks}
        waiting = [rank for rank in forming if rank in members and rank not in made.known_to]
        if len(made.by_members) > 1 and waiting:
            return _verdict(situation.views, name, made, forming)
    return None


def _made_groups(views: Mapping[int, RankView]) -> dict[str, _Made]:
    found: dict[str, _Made] = {}
    for rank, view in views.items():
        for group in view.record.groups if view.record is not None else ():
            if group.name is not None:
                made = found.setdefault(group.name, _Made())
                made.by_members.setdefault(group.ranks, []).append(rank)
                made.known_to.add(rank)
        forming = view.record.forming if view.record is not None else None
        if forming is not None:
            about_to = found.setdefault(forming.name, _Made())
            about_to.by_members.setdefault(forming.ranks, []).append(rank)
    return found


def _verdict(
    views: Mapping[int, RankView], name: str, made: _Made, forming: list[int]
) -> HangVerdict:
    sides = [
        Side(ranks=tuple(ranks), operation=_FORMING, group=name, members=members)
        for members, ranks in made.by_members.items()
    ]
    sides.sort(key=lambda side: (len(side.ranks), side.ranks))
    return HangVerdict(
        code=HangCode.MISMATCH,
        ranks=tuple(views[rank].source for rank in sides[0].ranks),
        place=place_of(views[sides[0].ranks[0]]),
        waiting=tuple(forming),
        operation=_FORMING,
        waiting_place=place_of(views[forming[0]]),
        sides=tuple(sides),
    )
