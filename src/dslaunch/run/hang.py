"""Why the ranks of a run make no progress: which rank the others wait for, and what it does. Pure.

PyTorch numbers the collectives of each process group, equally on all its ranks. The oldest number
that some rank has entered and not completed is what its group waits for:

- a member that has not entered it is what the others wait for, unless it waits in a collective of
  another group; then the same is asked there. What it waits for itself gives the code.
- members that entered different operations, sizes or types under the same number will not complete
  it, nor will ranks that wait for each other in different groups (`torch.distributed`, "Flight
  Recorder": collective mismatch);
- if all have entered it equally, the data between them does not arrive;
- a member that waits for a process group to be formed, which others have formed with it as a
  member, cannot connect to one of them.

Ranks that wait for a process group to be formed, or wait all, may also wait for the network: nodes
that could not connect to each other show that (`with_unreachable`).

Without a recorder, as with gloo in an older PyTorch, the stacks show which ranks are in a
collective; which one is not known. So it is for `monitored_barrier`, and transfers between two
ranks are not compared.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dslaunch.run.collectives import Collective, Group, RankState
from dslaunch.run.hang_verdict import HangCode, HangVerdict, Place, Side
from dslaunch.run.rank_hang import BY_RANK, bad_workers, code_of, halted
from dslaunch.run.rank_views import LIBRARY, RankView, own_place, place
from dslaunch.run.waits import NEAR, WaitKind, wait

_SAME_SIZES = re.compile(r"_?(?:all_?reduce|broadcast|reduce|all_?gather)\w*")
"""Operations whose input has the same number of elements on all ranks. Of others, such as
all_to_all and scatter, it may differ."""
_JOINING = frozenset({"init_process_group", "new_group", "split_group"})
"""Functions that return when all ranks of the group have called them."""
_BETWEEN_TWO = re.compile(r"(?:batch_)?i?(?:send|recv)(?:_\w+)?")
"""Transfers: ranks that are all in one do not wait for the same."""
_ONE_WAY = (
    frozenset({"send", "send_object_list"}),
    frozenset({"recv", "recv_object_list"}),
)
"""Transfers that complete only with one of the other kind in another rank."""


@dataclass(frozen=True, slots=True)
class _Wait:
    """What a group of ranks waits for."""

    group: str
    description: str
    number: int
    entered: dict[int, Collective]
    """The members that have entered it."""
    missing: tuple[int, ...]
    """The members that have not."""

    @property
    def began(self) -> float:
        """Return when its first member entered it, in seconds since the epoch."""
        return min(entry.entered for entry in self.entered.values())

    @property
    def group_name(self) -> str:
        """Return what a user knows the group by."""
        return self.description or self.group


@dataclass(frozen=True, slots=True)
class _Situation:
    """The views, and what follows from the records of all ranks together."""

    views: Mapping[int, RankView]
    members: Mapping[str, set[int]]
    """The ranks of each process group, by its name."""
    waits: list[_Wait]
    behind: Sequence[int]
    """Ranks that the others wait for by NCCL's report, which has no names of groups and lines."""
    now: float | None
    """Seconds since the epoch; None: unknown."""

    @property
    def waiting(self) -> set[int]:
        """Return the ranks that are in a collective that others of its group are not in, or that
        does not complete."""
        recorded = {rank for each in self.waits for rank in each.entered}
        return recorded | {rank for rank, view in self.views.items() if _seen_waiting(view)}


def judge(
    views: Mapping[int, RankView], now: float | None = None, behind: Sequence[int] = ()
) -> HangVerdict:
    """Return why the ranks make no progress. `now`: seconds since the epoch, for `since`. `behind`:
    ranks that the others wait for by NCCL's report, which counts where no recorder shows any."""
    members = _members(views)
    situation = _Situation(views, members, _waits(views, members), behind, now)
    not_running = _not_running(situation)
    if not_running and situation.waiting:
        return _about_ranks(situation, not_running)
    different = _different_operations(situation)
    if different is not None:
        connects = may_be_network(different) and _forms_known_group(situation)
        return _as_network(different) if connects else different
    roots = _roots(situation)
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


def _not_running(situation: _Situation) -> list[int]:
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


def _named_groups(views: Mapping[int, RankView]) -> Iterator[tuple[int, str, Group]]:
    """Yield the process groups that have a name, as each rank knows them: rank, name, group."""
    for rank, view in views.items():
        groups = view.record.groups if view.record is not None else ()
        for group in groups:
            if group.name is not None:
                yield rank, group.name, group


def _members(views: Mapping[int, RankView]) -> dict[str, set[int]]:
    """Return the ranks of each process group, by its name, as any rank knows them."""
    members: dict[str, set[int]] = {}
    for rank, name, group in _named_groups(views):
        members.setdefault(name, set()).update(group.ranks or {rank})
    return members


def _waits(views: Mapping[int, RankView], members: Mapping[str, set[int]]) -> list[_Wait]:
    """Return the oldest collective of each group that some member has not completed, the one that
    was entered first first."""
    descriptions = {name: group.description for _, name, group in _named_groups(views)}
    recorded = {rank: _by_group(view) for rank, view in views.items()}
    found = []
    for name, ranks in members.items():
        known = sorted(ranks & views.keys())
        entries = {rank: recorded[rank].get(name, ()) for rank in known}
        oldest = _oldest_wait(name, descriptions[name], entries)
        if oldest is not None:
            found.append(oldest)
    return sorted(found, key=lambda each: each.began)


def _oldest_wait(
    group: str, description: str, entries: Mapping[int, Sequence[Collective]]
) -> _Wait | None:
    """Return the oldest collective of a group that some member has not completed; None: there is
    none. `entries`: what each member has recorded in this group; one that has not answered has
    recorded nothing, and entered nothing."""
    uncompleted = [
        entry.seq for several in entries.values() for entry in several if not entry.completed
    ]
    if not uncompleted:
        return None
    number = min(uncompleted)
    entered: dict[int, Collective] = {}
    missing = []
    for rank, several in entries.items():
        own = next((entry for entry in several if entry.seq == number), None)
        if own is not None:
            entered[rank] = own
        elif all(entry.seq < number for entry in several):
            missing.append(rank)
    return _Wait(group, description, number, entered, tuple(missing))


def _by_group(view: RankView) -> Mapping[str, Sequence[Collective]]:
    """Return the collectives of a rank by the name of their group."""
    found: defaultdict[str, list[Collective]] = defaultdict(list)
    for entry in view.record.entries if view.record is not None else ():
        if not entry.p2p:
            found[entry.group].append(entry)
    return found


def _seen_waiting(view: RankView) -> bool:
    """Return whether only the stack of a rank shows that it waits for others: it has no recorder,
    or is in an operation that is not compared, such as `monitored_barrier` and `recv`."""
    compared = [] if view.record is None else [e for e in view.record.entries if not e.p2p]
    if view.process is None or any(not entry.completed for entry in compared):
        return False
    seen = view.process.wait
    return seen is not None and seen.kind in (WaitKind.COLLECTIVE, WaitKind.STORE)


def _seen_operation(view: RankView) -> str | None:
    """Return the function in which a rank waits for others, by its stack."""
    process = view.process
    seen = process.wait if process is not None else None
    if process is None or seen is None or seen.frame is None:
        return None
    joining = [frame.function for frame in process.frames if frame.function in _JOINING]
    if joining:
        return joining[0]
    # torch wraps its functions; the outermost is the one that the program calls
    last = seen.frame
    for index, frame in enumerate(process.frames[: seen.frame + NEAR]):
        if LIBRARY.search(frame.file) and wait([frame]) is not None:
            last = index
    return process.frames[last].function


def _roots(situation: _Situation) -> list[int]:
    """Return the ranks that others wait for and that do not wait in a collective themselves."""
    waiting = situation.waiting
    missing = {rank for each in situation.waits for rank in each.missing}
    roots = sorted(missing - waiting)
    if roots or situation.waits or not waiting:
        return roots
    # only stacks tell: those that are not in a collective
    return sorted(situation.views.keys() - waiting)


def _different_operations(situation: _Situation) -> HangVerdict | None:
    """Return the verdict if ranks have entered different collectives, under the same number or in
    groups that wait for each other."""
    for each in situation.waits:
        sides = _sides(each, situation)
        if len(sides) > 1:
            final = len({side.operation for side in sides}) > 1
            return _mismatch(each, sides, situation, final=final)
    if not situation.waits or _roots(situation):
        return None
    crossed = _crossed(situation.waits)
    sides = [side for each in crossed for side in _sides(each, situation)]
    if len(sides) > 1:
        # operations that were begun asynchronously do not keep a rank from the others
        final = all(_is_blocked(situation.views[rank]) for s in sides for rank in s.ranks)
        return _mismatch(crossed[0], sides, situation, final=final)
    return _in_other_operations(situation)


def _crossed(waits: Sequence[_Wait]) -> list[_Wait]:
    """Return the collectives that wait for each other: members that have not entered one are in
    another of them. One that all members have entered waits for none."""
    left = list(waits)
    while True:
        inside = {
            rank for each in left for rank, entry in each.entered.items() if not entry.completed
        }
        kept = [each for each in left if inside.intersection(each.missing)]
        if len(kept) == len(left):
            return kept
        left = kept


def _forms_known_group(situation: _Situation) -> bool:
    """Return whether a rank waits for a process group to be formed that others have formed with
    it: it cannot connect to one of the members."""
    if len({view.host for view in situation.views.values()}) < 2:
        return False
    return any(
        rank in members and name not in _own_groups(view)
        for rank, view in situation.views.items()
        if _forms_group(view)
        for name, members in situation.members.items()
    )


def _forms_group(view: RankView) -> bool:
    """Return whether a rank that has answered waits for a process group to be formed."""
    answered = view.record is not None and view.record.state is RankState.ANSWERED
    return answered and _seen_operation(view) in _JOINING


def _own_groups(view: RankView) -> frozenset[str | None]:
    """Return the names of the process groups that a rank has formed."""
    groups = view.record.groups if view.record is not None else ()
    return frozenset(group.name for group in groups)


def _in_other_operations(situation: _Situation) -> HangVerdict | None:
    """Return the verdict if those that have not entered a collective wait for others themselves,
    in operations that only their stacks show."""
    for each in situation.waits:
        seen = [rank for rank in each.missing if _seen_waiting(situation.views[rank])]
        if seen:
            return _mismatch_with_seen(each, seen, situation)
    return None


def _mismatch_with_seen(each: _Wait, seen: Sequence[int], situation: _Situation) -> HangVerdict:
    """Return the verdict if the stacks of ranks show that they are in other operations."""
    others: dict[str, list[int]] = {}
    for rank in seen:
        operation = _seen_operation(situation.views[rank]) or "another operation"
        others.setdefault(operation, []).append(rank)
    unrecorded = [
        Side(tuple(ranks), operation, place=_place_of(situation.views[ranks[0]]))
        for operation, ranks in others.items()
    ]
    sides = [*_sides(each, situation), *unrecorded]
    # a group is made by all ranks together, and these cannot while they wait in a collective
    joining = others.keys() <= _JOINING
    final = joining and all(_is_idle(situation.views[rank]) for rank in each.entered)
    return _mismatch(each, sides, situation, final=final)


def _sides(each: _Wait, situation: _Situation) -> list[Side]:
    alike: dict[object, list[int]] = {}
    for rank, entry in each.entered.items():
        alike.setdefault(_kind(entry), []).append(rank)
    return [
        Side(
            ranks=tuple(ranks),
            operation=each.entered[ranks[0]].operation,
            group=each.group_name,
            sizes=each.entered[ranks[0]].sizes,
            dtypes=each.entered[ranks[0]].dtypes,
            place=_place_in(situation.views[ranks[0]], each.entered[ranks[0]]),
        )
        for ranks in alike.values()
    ]


def _kind(entry: Collective) -> object:
    """Return what must be equal on all ranks."""
    if not _SAME_SIZES.fullmatch(entry.operation):
        return entry.operation
    elements = sum(math.prod(sizes) for sizes in entry.sizes)
    return entry.operation, elements, entry.dtypes


def _is_blocked(view: RankView) -> bool:
    """Return whether the main thread of a rank is seen in a collective."""
    seen = view.process.wait if view.process is not None else None
    return seen is not None and seen.kind is WaitKind.COLLECTIVE


def _is_idle(view: RankView) -> bool:
    """Return whether the main thread of a rank waits for something."""
    return view.process is not None and view.process.wait is not None


def _mismatch(
    each: _Wait,
    sides: list[Side],
    situation: _Situation,
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
        since=_since(each, situation.now),
        final=final or None,
    )


def _is_transfer(side: Side) -> bool:
    return _BETWEEN_TWO.fullmatch(side.operation) is not None


def _is_transfer_of(side: Side, ranks: int) -> bool:
    return _is_transfer(side) and len(side.ranks) == ranks


def _all_have_entered(situation: _Situation) -> HangVerdict:
    """Return the verdict for a collective that all members have entered equally. Members of other
    groups may wait for them."""
    each = next((each for each in situation.waits if not each.missing), situation.waits[0])
    hosts = {situation.views[rank].host for rank in each.entered}
    code = HangCode.NETWORK if len(hosts) > 1 else HangCode.UNKNOWN
    return _waited_for(situation, HangVerdict(code), each)


def _all_seen_waiting(situation: _Situation) -> HangVerdict:
    """Return the verdict if the stacks of all ranks show that they wait for each other."""
    views = situation.views.values()
    operations = {_seen_operation(view) for view in views}
    if all(_is_joining(view) for view in views):
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
    return len(operations) == 1 and first is not None and not _BETWEEN_TWO.fullmatch(first)


def _is_joining(view: RankView) -> bool:
    """Return whether a rank waits until others have joined a process group."""
    seen = view.process.wait if view.process is not None else None
    return seen is not None and seen.kind is WaitKind.STORE


def may_be_network(verdict: HangVerdict) -> bool:
    """Return whether nodes that cannot connect to each other would explain a hang."""
    if verdict.code is HangCode.MISMATCH:
        return any(side.operation in _JOINING for side in verdict.sides)
    together = (HangCode.NETWORK, HangCode.RENDEZVOUS, HangCode.UNKNOWN)
    return verdict.code in together and bool(verdict.waiting)


def with_unreachable(verdict: HangVerdict, pairs: Sequence[tuple[str, str]]) -> HangVerdict:
    """Return the verdict with the pairs of nodes of which the first could not connect to the
    second, if these may explain it."""
    if not pairs or not may_be_network(verdict):
        return verdict
    return replace(_as_network(verdict), unreachable=tuple(pairs))


def _as_network(verdict: HangVerdict) -> HangVerdict:
    """Return the verdict if ranks cannot connect: no side of a mismatch is the wrong one."""
    sides = [rank for side in verdict.sides for rank in side.ranks]
    waiting = tuple(sorted(sides)) or verdict.waiting
    return replace(
        verdict, code=HangCode.NETWORK, ranks=(), place=None, waiting=waiting, final=None
    )


def _seen_waited_for(situation: _Situation, verdict: HangVerdict) -> HangVerdict:
    """Return the verdict with the ranks whose stacks show that they wait for those."""
    guilty = {rank for _, rank in verdict.ranks}
    waiting = tuple(sorted(situation.waiting - guilty))
    if not waiting:
        return verdict
    first = situation.views[waiting[0]]
    return replace(
        verdict,
        waiting=waiting,
        operation=_seen_operation(first),
        waiting_place=_place_of(first),
    )


def _waited_for(situation: _Situation, verdict: HangVerdict, each: _Wait) -> HangVerdict:
    """Return the verdict with the collective that is waited for."""
    guilty = {rank for _, rank in verdict.ranks}
    waiting = tuple(
        rank for rank, own in each.entered.items() if rank not in guilty and not own.completed
    )
    entry = each.entered[waiting[0]] if waiting else next(iter(each.entered.values()))
    where = _place_in(situation.views[waiting[0]], entry) if waiting else None
    return replace(
        verdict,
        waiting=waiting,
        operation=entry.operation,
        group=each.group_name,
        number=each.number,
        waiting_place=where,
        since=_since(each, situation.now),
    )


def _since(each: _Wait, now: float | None) -> float | None:
    return None if now is None else max(0.0, now - each.began)


def _place_in(view: RankView, entry: Collective) -> Place | None:
    """Return where a rank has entered a collective.

    In a backward pass, a thread of PyTorch may have entered it, with no line of the user's program
    in its stack: then that is where the main thread waits for it.
    """
    seen = view.process.frames if view.process is not None else ()
    return own_place(entry.frames) or own_place(seen) or place(entry.frames or seen)


def _place_of(view: RankView) -> Place | None:
    return place(view.process.frames) if view.process is not None else None


# ---------------------------------------------------------------- single ranks


def _about_ranks(situation: _Situation, ranks: Sequence[int]) -> HangVerdict:
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
        place=place(process.frames) if process is not None else None,
        wait=seen.kind if seen is not None else None,
        on=process.on if process is not None and code is HangCode.FILESYSTEM else "",
        exit_code=first.exit_code,
        signal=first.signal,
        workers=len(bad_workers(first)) if code is HangCode.DATALOADER else None,
    )
    numbers = {view.rank for view in those}
    relevant = [each for each in situation.waits if numbers & {*each.missing, *each.entered}]
    if relevant:
        return _waited_for(situation, verdict, relevant[0])
    return _seen_waited_for(situation, verdict)


def _without_collectives(situation: _Situation) -> HangVerdict:
    """Return the verdict if no rank is in a collective: what most ranks do."""
    codes = Counter(code_of(view) for view in situation.views.values())
    if not codes:
        return HangVerdict(HangCode.UNKNOWN)
    code, count = codes.most_common(1)[0]
    sources = tuple(view.source for view in situation.views.values() if code_of(view) is code)
    if count == len(situation.views) and code not in (HangCode.BUSY, HangCode.NOT_ENTERED):
        return _about_ranks(situation, list(situation.views))
    first = situation.views[sources[0][1]].process
    return HangVerdict(
        code=HangCode.SLOW,
        ranks=sources,
        place=place(first.frames) if first is not None else None,
    )
