"""Why the ranks of a run make no progress: which rank the others wait for, and what it does. Pure.

PyTorch numbers the collectives of each process group, equally on all its ranks. The oldest number
that some rank has entered and not completed is what its group waits for (`group_waits.py`):

- a member that has not entered it is what the others wait for, unless it waits in a collective of
  another group; then the same is asked there. What it waits for itself gives the code
  (`rank_hang.py`).
- ranks that wait for each other in transfers between two ranks will not complete them
  (`hang_transfers.py`).
- members of a group that others have made of other ranks wait for them (`hang_groups.py`).
- members that entered different operations will not complete them (`hang_mismatch.py`).
- if all have entered it equally, the data between them does not arrive, which may be the network
  (`hang_network.py`).

Without a recorder, as with gloo in an older PyTorch, the stacks show which ranks are in a
collective (`seen_waits.py`); which one is not known. So it is for `monitored_barrier`, and for
transfers between two ranks that are no circle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from dslaunch.run.group_waits import GroupWait, group_members, group_waits
from dslaunch.run.hang_groups import unlike_groups
from dslaunch.run.hang_mismatch import mismatch_of
from dslaunch.run.hang_network import as_network, forms_known_group, may_be_network
from dslaunch.run.hang_situation import Situation
from dslaunch.run.hang_transfers import circle_of_transfers
from dslaunch.run.hang_verdict import HangCode, HangVerdict
from dslaunch.run.rank_hang import BY_RANK, bad_workers, code_of, file_lock, halted
from dslaunch.run.rank_views import RankView, place_in, place_of
from dslaunch.run.seen_waits import BETWEEN_TWO, is_joining, seen_operation

_ONE_WAY = (
    frozenset({"send", "send_object_list"}),
    frozenset({"recv", "recv_object_list"}),
)
"""Transfers that complete only with one of the other kind in another rank."""


def judge(
    views: Mapping[int, RankView], now: float | None = None, behind: Sequence[int] = ()
) -> HangVerdict:
    """Return why the ranks make no progress. `now`: seconds since the epoch, for `since`. `behind`:
    ranks that the others wait for by NCCL's report, which counts where no recorder shows any."""
    members = group_members(views)
    situation = Situation(views, members, group_waits(views, members), behind, now)
    not_running = _not_running(situation)
    if not_running and situation.waiting:
        return _about_ranks(situation, not_running)
    circle = circle_of_transfers(situation)
    if circle is not None:
        return circle
    unlike = unlike_groups(situation)
    if unlike is not None:
        return unlike
    different = mismatch_of(situation)
    if different is not None:
        connects = may_be_network(different) and forms_known_group(situation)
        return as_network(different) if connects else different
    roots = situation.roots
    if roots:
        return _about_ranks(situation, roots)
    if situation.behind:
        return _about_ranks(situation, situation.behind)
    if situation.waits:
        return _all_have_entered(situation)
    if situation.waiting:
        return _all_seen_waiting(situation)
    if not_running:
        return _about_ranks(situation, _unlike_most(views, not_running))
    return _without_collectives(situation)


def _not_running(situation: Situation) -> list[int]:
    """Return the ranks that do not run; if there are collectives that ranks wait in, of their
    members."""
    halted_ranks = [rank for rank, view in situation.views.items() if halted(view) is not None]
    if not situation.waits:
        return halted_ranks
    involved = {rank for each in situation.waits for rank in (*each.missing, *each.entered)}
    return [rank for rank in halted_ranks if rank in involved]


def _unlike_most(views: Mapping[int, RankView], not_running: Sequence[int]) -> Sequence[int]:
    """Return what is to be named where no rank waits for another one: the ranks that do not run, or
    the last ones that do, if the others have ended their programs."""
    last = [rank for rank, view in views.items() if halted(view) is None]
    ended = [rank for rank in not_running if halted(views[rank]) is HangCode.DEAD]
    return last if last and len(ended) >= len(last) else not_running


def _all_have_entered(situation: Situation) -> HangVerdict:
    """Return the verdict for a collective that all members have entered equally. Members of other
    groups may wait for them."""
    each = next((each for each in situation.waits if not each.missing), situation.waits[0])
    not_begun = [situation.views[rank] for rank in each.not_begun]
    if not_begun:
        ranks = tuple(view.source for view in not_begun)
        verdict = HangVerdict(HangCode.GPU_BUSY, ranks=ranks, place=place_of(not_begun[0]))
        return _waited_for(situation, verdict, each)
    hosts = {situation.views[rank].host for rank in each.entered}
    code = HangCode.NETWORK if len(hosts) > 1 else HangCode.UNKNOWN
    return _waited_for(situation, HangVerdict(code), each)


def _all_seen_waiting(situation: Situation) -> HangVerdict:
    """Return the verdict if the stacks of all ranks show that they wait for each other."""
    views = situation.views.values()
    operations = {seen_operation(view) for view in views}
    if all(is_joining(view) for view in views):
        code = HangCode.RENDEZVOUS
    elif _is_one_collective(operations) and len({view.host for view in views}) > 1:
        code = HangCode.NETWORK
    elif any(operations <= one_way for one_way in _ONE_WAY):
        code = HangCode.ONE_WAY
    else:
        code = HangCode.UNKNOWN
    return _seen_waited_for(situation, HangVerdict(code))


def _is_one_collective(operations: set[str | None]) -> bool:
    """Return whether these are one operation, which all ranks complete together."""
    first = next(iter(operations))
    return len(operations) == 1 and first is not None and not BETWEEN_TWO.fullmatch(first)


def _seen_waited_for(situation: Situation, verdict: HangVerdict) -> HangVerdict:
    """Return the verdict with the ranks whose stacks show that they wait for those."""
    guilty = {rank for _, rank in verdict.ranks}
    waiting = tuple(sorted(situation.waiting - guilty))
    if not waiting:
        return verdict
    first = situation.views[waiting[0]]
    return replace(
        verdict,
        waiting=waiting,
        operation=seen_operation(first),
        waiting_place=place_of(first),
    )


def _waited_for(situation: Situation, verdict: HangVerdict, each: GroupWait) -> HangVerdict:
    """Return the verdict with the collective that is waited for."""
    guilty = {rank for _, rank in verdict.ranks}
    waiting = tuple(
        rank for rank, own in each.entered.items() if rank not in guilty and not own.completed
    )
    entry = each.entered[waiting[0]] if waiting else next(iter(each.entered.values()))
    where = place_in(situation.views[waiting[0]], entry) if waiting else None
    return replace(
        verdict,
        waiting=waiting,
        operation=entry.operation,
        group=each.group_name,
        number=each.number,
        waiting_place=where,
        since=each.since(situation.now),
    )


def _about_ranks(situation: Situation, ranks: Sequence[int]) -> HangVerdict:
    """Return the verdict about ranks that the others wait for."""
    codes = {rank: code_of(situation.views[rank]) for rank in ranks}
    code = next(each for each in BY_RANK if each in codes.values())
    those = [situation.views[rank] for rank in ranks if codes[rank] is code]
    first = those[0]
    process = first.process
    seen = process.wait if process is not None else None
    verdict = HangVerdict(
        code=code,
        ranks=tuple(view.source for view in those),
        place=place_of(first),
        wait=seen.kind if seen is not None else None,
        on=process.on if process is not None and code is HangCode.FILESYSTEM else "",
        lock=file_lock(first) if code is HangCode.LOCK else None,
        exit_code=first.exit_code,
        signal=first.signal,
        workers=len(bad_workers(first)) if code is HangCode.DATALOADER else None,
    )
    numbers = {view.rank for view in those}
    relevant = [each for each in situation.waits if numbers & {*each.missing, *each.entered}]
    if relevant:
        return _waited_for(situation, verdict, relevant[0])
    return _seen_waited_for(situation, verdict)


def _without_collectives(situation: Situation) -> HangVerdict:
    """Return the verdict if no rank is in a collective: what most ranks do."""
    codes = Counter(code_of(view) for view in situation.views.values())
    if not codes:
        return HangVerdict(HangCode.UNKNOWN)
    code, count = codes.most_common(1)[0]
    sources = tuple(view.source for view in situation.views.values() if code_of(view) is code)
    if count == len(situation.views) and code not in (HangCode.BUSY, HangCode.NOT_ENTERED):
        return _about_ranks(situation, list(situation.views))
    first = situation.views[sources[0][1]]
    return HangVerdict(
        code=HangCode.SLOW,
        ranks=sources,
        place=place_of(first),
    )
