"""Why ranks wait for each other and do not meet in a process group. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from dslaunch.cluster.nodeset import ranks_text
from dslaunch.plural import first_few
from dslaunch.protocol.rehearsal import Group, RendezvousBegun
from dslaunch.rehearsal.findings import Finding, FindingKind, finding
from dslaunch.rehearsal.ranks import Ranks, is_shared
from dslaunch.run.hang_text import place_text
from dslaunch.run.hang_verdict import HangCode, HangVerdict
from dslaunch.run.reasons import EndCode
from dslaunch.run.rehearsal import (
    Rehearsed,
    lacks_master,
    lacks_ranks,
    lacks_server,
    ports_of,
    rendezvous_begun,
    with_equal_ranks,
)

MOST_PORTS = 4
"""Ports that one finding names."""
Begun = Mapping[int, RendezvousBegun]
"""What each rank waits for, by rank."""


def impossible_rendezvous(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield what ranks wait for that is not there."""
    hang = rehearsed.outcome.reason.hang
    if hang is None or hang.code not in (HangCode.RENDEZVOUS, HangCode.NETWORK):
        return
    begun = rendezvous_begun({rank.rank: rank.records for rank in ranks})
    seen = _waiting(hang)
    yield from _lacking(rehearsed, begun, seen)
    for number, several in with_equal_ranks(begun).items():
        where = ranks_text(several)
        yield finding(FindingKind.SAME_RANK, where, evidence=seen, number=number)
    ports = sorted(ports_of(begun))
    if len(ports) > 1:
        names = ", ".join(first_few([str(port) for port in ports], MOST_PORTS))
        yield finding(FindingKind.PORTS_DIFFER, ranks_text(begun), evidence=seen, ports=names)
    hosts = {rank.host for rank in ranks}
    for path in sorted({each.file for each in begun.values() if each.file is not None}):
        if is_shared(rehearsed.facts, path, hosts) is False:
            yield finding(FindingKind.FILE_NOT_SHARED, ranks_text(begun), evidence=seen, path=path)
            return


def _waiting(verdict: HangVerdict) -> str | None:
    """Return where ranks wait: the hang itself is no finding then."""
    place = place_text(verdict.waiting_place)
    return f"wait in {verdict.operation or 'a rendezvous'}: {place}" if place else None


def _lacking(rehearsed: Rehearsed, begun: Begun, seen: str | None) -> Iterator[Finding]:
    """Yield the ranks that wait for more ranks than there are, or for a master that they cannot
    find."""
    world = rehearsed.full_ranks
    ranks: dict[int, list[int]] = defaultdict(list)
    masters: dict[tuple[FindingKind, str], list[int]] = defaultdict(list)
    other_ports: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, each in begun.items():
        if each.world is not None and lacks_ranks(each, world):
            ranks[each.world].append(rank)
        if each.address is not None and lacks_master(each, rehearsed.plan):
            masters[FindingKind.LACKS_MASTER, each.address].append(rank)
        if each.address is not None and each.resolves is False:
            masters[FindingKind.UNKNOWN_MASTER, each.address].append(rank)
        if each.port is not None and each.served is not None and lacks_server(each):
            other_ports[each.port, each.served].append(rank)
    for wanted, several in ranks.items():
        where = ranks_text(several)
        yield finding(FindingKind.LACKS_RANKS, where, evidence=seen, world=wanted, ranks=world)
    for (kind, address), several in masters.items():
        yield finding(kind, ranks_text(several), evidence=seen, address=address)
    for (port, served), several in other_ports.items():
        where = ranks_text(several)
        yield finding(FindingKind.OTHER_PORT, where, evidence=seen, port=port, served=served)


def groups_differ(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield the first group that ranks make with different members, if the run failed: all ranks
    make each group, also those that they are not in (`torch.distributed.new_group`)."""
    outcome = rehearsed.outcome
    if outcome.reason.code is not EndCode.HANG and outcome.status == "ok":
        return
    made = [[each for each in rank.every(Group) if not each.by_members] for rank in ranks]
    for several in zip(*made, strict=False):
        members = [each.members for each in several]
        first = members[0]
        others = [rank.rank for rank, own in zip(ranks, members, strict=True) if own != first]
        if others:
            own = next(each for each in members if each != first)
            seen = _waiting(outcome.reason.hang) if outcome.reason.hang is not None else None
            texts = {"own": _members_text(own), "other": _members_text(first)}
            yield finding(FindingKind.GROUPS_DIFFER, ranks_text(others), evidence=seen, **texts)
            return


def _members_text(members: tuple[int, ...] | None) -> str:
    return "all ranks" if members is None else ranks_text(members)
