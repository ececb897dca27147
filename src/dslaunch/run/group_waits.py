"""What the process groups of a run wait for, by what their ranks have recorded. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from dslaunch.run.collectives import Collective, Group
from dslaunch.run.rank_views import RankView


class GroupWait(Struct, frozen=True):
    """What a group of ranks waits for."""

    group: str
    description: str
    number: int
    entered: dict[int, Collective]
    """The members that have entered it."""
    missing: tuple[int, ...]
    """The members that have not."""

    @property
    def not_begun(self) -> list[int]:
        """Return the members whose GPUs have not begun it, while those of others have."""
        if not any(entry.started for entry in self.entered.values()):
            return []  # it is not told
        return sorted(
            rank
            for rank, entry in self.entered.items()
            if not entry.started and not entry.completed
        )

    @property
    def began(self) -> float:
        """Return when its first member entered it, in seconds since the epoch."""
        return min(entry.entered for entry in self.entered.values())

    @property
    def group_name(self) -> str:
        """Return what a user knows the group by."""
        return self.description or self.group

    def since(self, now: float | None) -> float | None:
        """Return for how many seconds it has been waited for; None: unknown, as `now` is."""
        return None if now is None else max(0.0, now - self.began)


def group_members(views: Mapping[int, RankView]) -> dict[str, set[int]]:
    """Return the ranks of each process group, by its name, as any rank knows them."""
    members: dict[str, set[int]] = {}
    for rank, name, group in _named_groups(views):
        members.setdefault(name, set()).update(group.ranks or {rank})
    return members


def group_waits(views: Mapping[int, RankView], members: Mapping[str, set[int]]) -> list[GroupWait]:
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


def crossed(waits: Sequence[GroupWait]) -> list[GroupWait]:
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


def _oldest_wait(
    group: str, description: str, entries: Mapping[int, Sequence[Collective]]
) -> GroupWait | None:
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
    return GroupWait(group, description, number, entered, tuple(missing))


def _named_groups(views: Mapping[int, RankView]) -> Iterator[tuple[int, str, Group]]:
    """Yield the process groups that have a name, as each rank knows them: rank, name, group."""
    for rank, view in views.items():
        groups = view.record.groups if view.record is not None else ()
        for group in groups:
            if group.name is not None:
                yield rank, group.name, group


def _by_group(view: RankView) -> Mapping[str, Sequence[Collective]]:
    """Return the collectives of a rank by the name of their group."""
    found: defaultdict[str, list[Collective]] = defaultdict(list)
    for entry in view.record.entries if view.record is not None else ():
        if not entry.p2p:
            found[entry.group].append(entry)
    return found
