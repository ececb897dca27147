"""Whether the network is why ranks make no progress. Pure.

Ranks that wait for a process group to be formed, or wait all, may wait for the network: nodes that
could not connect to each other show that. A member that waits for a group to be formed, which
others have formed with it as a member, cannot connect to one of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dslaunch.run.hang_situation import Situation
from dslaunch.run.hang_verdict import HangCode, HangVerdict
from dslaunch.run.rank_views import RankView
from dslaunch.run.seen_waits import JOINING, forms_group


def may_be_network(verdict: HangVerdict) -> bool:
    """Return whether nodes that cannot connect to each other would explain a hang."""
    if verdict.code is HangCode.MISMATCH:
        return any(side.operation in JOINING for side in verdict.sides)
    together = (HangCode.NETWORK, HangCode.RENDEZVOUS, HangCode.UNKNOWN)
    return verdict.code in together and bool(verdict.waiting)


def with_unreachable(verdict: HangVerdict, pairs: Sequence[tuple[str, str]]) -> HangVerdict:
    """Return the verdict with the pairs of nodes of which the first could not connect to the
    second, if these may explain it."""
    if not pairs or not may_be_network(verdict):
        return verdict
    return replace(as_network(verdict), unreachable=tuple(pairs))


def as_network(verdict: HangVerdict) -> HangVerdict:
    """Return the verdict if ranks cannot connect: no side of a mismatch is the wrong one."""
    sides = [rank for side in verdict.sides for rank in side.ranks]
    waiting = tuple(sorted(sides)) or verdict.waiting
    return replace(
        verdict, code=HangCode.NETWORK, ranks=(), place=None, waiting=waiting, final=None
    )


def forms_known_group(situation: Situation) -> bool:
    """Return whether a rank waits for a process group to be formed that others have formed with
    it: it cannot connect to one of the members."""
    if len({view.host for view in situation.views.values()}) < 2:
        return False
    return any(
        rank in members and name not in _own_groups(view)
        for rank, view in situation.views.items()
        if forms_group(view)
        for name, members in situation.members.items()
    )


def _own_groups(view: RankView) -> frozenset[str | None]:
    """Return the names of the process groups that a rank has formed."""
    groups = view.record.groups if view.record is not None else ()
    return frozenset(group.name for group in groups)
