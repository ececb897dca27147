"""What is known of a run without progress, and which ranks the others wait for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from dslaunch.run.group_waits import GroupWait
from dslaunch.run.rank_views import RankView
from dslaunch.run.seen_waits import in_native_code, is_elsewhere, is_seen_waiting


class Situation(Struct, frozen=True):
    """The views, and what follows from the records of all ranks together."""

    views: Mapping[int, RankView]
    members: Mapping[str, set[int]]
    """The ranks of each process group, by its name."""
    waits: list[GroupWait]
    behind: Sequence[int]
    """Ranks that the others wait for by NCCL's report, which has no names of groups and lines."""
    now: float | None
    """Seconds since the epoch; None: unknown."""

    @property
    def waiting(self) -> set[int]:
        """Return the ranks that are in a collective that others of its group are not in, or that
        does not complete; if there is none, most ranks if only these wait in native code."""
        recorded = {
            rank
            for each in self.waits
            for rank, entry in each.entered.items()
            if not entry.completed and not is_elsewhere(self.views[rank])
        }
        seen = {rank for rank, view in self.views.items() if is_seen_waiting(view)}
        return recorded | seen or self._most_in_native_code

    @property
    def _most_in_native_code(self) -> set[int]:
        """Return the ranks that wait in native code, if these are most and not all: PyTorch waits
        there for its store, and for transfers that were begun asynchronously."""
        inside = in_native_code(self.views)
        all_ranks = len(self.views)
        return inside if all_ranks / 2 < len(inside) < all_ranks else set()

    @property
    def roots(self) -> list[int]:
        """Return the ranks that others wait for and that do not wait in a collective themselves."""
        waiting = self.waiting
        missing = {rank for each in self.waits for rank in each.missing}
        roots = sorted(missing - waiting)
        if roots or self.waits or not waiting:
            return self._with_a_known_wait(roots)
        # only stacks tell: those that are not in a collective
        return sorted(self.views.keys() - waiting)

    def _with_a_known_wait(self, ranks: list[int]) -> list[int]:
        """Return those of the ranks whose stacks show what they do, if there are any: one that
        waits in native code may wait for these, such as for a transfer that it has begun
        asynchronously."""
        in_unknown = in_native_code(self.views)
        return [rank for rank in ranks if rank not in in_unknown] or ranks
