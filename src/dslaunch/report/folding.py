"""Equal lines of several ranks as one line. Pure: the caller passes the time."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

from msgspec import Struct, field

from dslaunch.run.events import Line
from dslaunch.run.reasons import RankSource

WINDOW = 0.25
"""Seconds that a line waits for equal lines of other ranks, which their nodes send at once."""
MOST_WAITING = 4096
"""Groups of lines that wait at a time: ranks may write faster than a terminal shows."""

MOST_APART = 1.0
"""Seconds between the times at which equal lines were written, at most: recorded lines arrive all
at once. More than `WINDOW`, since the clocks of nodes drift during a run."""
MOST_COMPARED = 8
"""Equal groups that a line may join which are compared with it."""
MOST_MOVED = 8
"""Groups that are moved together."""
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_DATE = r"\d{4}-\d\d-\d\d[ T]|\d\d/\d\d/\d{4} "
_WRITTEN = re.compile(rf"\[?(?:(?:{_DATE}){_CLOCK}|[IWEF]\d{{4}} {_CLOCK}(?: \d+)?)")
"""The time at the beginning of a line, which differs by rank in lines that are equal otherwise: of
Python's `logging` and DeepSpeed, of Transformers' examples, of glog as in torchrun, which adds the
number of the process."""


_Key = tuple[str, str, str, bool]


class FoldedLine(Struct, eq=False):
    """A line that one or more ranks, or launchers of nodes, have written."""

    key: _Key
    """What equal lines have in common."""
    line: Line
    """As the first of them has written it."""
    arrived: float
    """When that was, in seconds of any clock."""
    number: int
    """Its place: groups are shown in the order of their numbers."""
    sources: list[RankSource] = field(default_factory=list)
    """Each once, in the order of arrival."""
    following: dict[int, FoldedLine] = field(default_factory=dict)
    """The groups with the next line of one of them, by identity; empty once it is released."""
    released: bool = False


class LineFolder:
    """Groups equal lines that different ranks write to the same stream within WINDOW.

    Lines that differ only by a time at their beginning are equal.

    No line is lost, and the lines of a rank stay in their order: a line joins a group only if all
    earlier lines of its rank are in earlier groups. If there is no such group, an earlier one is
    moved behind these, with the groups of the lines that follow it: each rank may have printed a
    line with its number before the equal lines. It waits for at most twice WINDOW.
    """

    def __init__(self, window: float = WINDOW) -> None:
        self.window = window
        self._waiting: deque[tuple[int, FoldedLine]] = deque()
        """Groups with the numbers that they had when they were added: of one that was moved, the
        place with its present number counts."""
        self._by_key: dict[_Key, list[FoldedLine]] = {}
        self._newest: dict[RankSource, FoldedLine] = {}
        """The group with the latest line of each rank."""
        self._count = 0

    def __bool__(self) -> bool:
        """Whether lines are waiting."""
        return bool(self._waiting)

    @property
    def full(self) -> bool:
        """Whether lines must not wait any longer."""
        return len(self._waiting) > MOST_WAITING

    def add(self, line: Line, now: float) -> None:
        """Take a line that has arrived."""
        source = (line.host, line.rank)
        before = self._newest.get(source)
        key = _key(line)
        same = self._by_key.setdefault(key, [])
        group = self._joinable(line, same, before, now)
        if group is None:
            group = FoldedLine(key, line, now, 0)
            same.append(group)
            self._append(group)
        group.sources.append(source)
        if before is not None and not before.released:
            before.following[id(group)] = group
        self._newest[source] = group

    def due(self, now: float) -> Iterator[FoldedLine]:
        """Yield and forget the groups that have waited long enough, the oldest first."""
        # of too many lines, many are released at once: one by one they would be written so
        most = MOST_WAITING // 2 if self.full else MOST_WAITING
        while self._waiting:
            is_due = now - self._waiting[0][1].arrived >= self.window
            if not is_due and len(self._waiting) <= most:
                return
            yield self._take()

    def rest(self) -> Iterator[FoldedLine]:
        """Yield and forget all groups."""
        while self._waiting:
            yield self._take()

    def _joinable(
        self, line: Line, same: list[FoldedLine], before: FoldedLine | None, now: float
    ) -> FoldedLine | None:
        """Return the first of equal groups that a line may join after the group of the line before;
        None: there is none."""
        newest = -1 if before is None else before.number
        later = bisect_right(same, newest, key=lambda group: group.number)
        if later < len(same):
            candidates = same[later : later + MOST_COMPARED]
            return next((group for group in candidates if _is_near(group, line)), None)
        if not same or before is None or not _is_near(same[-1], line):
            return None
        moved = self._with_following(same[-1], now)
        if moved is None or any(group is before for group in moved):
            return None
        for group in moved:
            self._append(group)
        return same[-1]

    def _with_following(self, first: FoldedLine, now: float) -> list[FoldedLine] | None:
        """Return a group and all groups with later lines of its sources, in their order.

        None if they are many, if one of them must not wait any longer, or if a group with the same
        text comes after one of them: it would be before it.
        """
        found, open_ends = {id(first): first}, [first]
        while open_ends:
            group = open_ends.pop()
            is_last = self._by_key[group.key][-1] is group
            if not is_last or now - group.arrived >= self.window or len(found) > MOST_MOVED:
                return None
            new = {key: each for key, each in group.following.items() if key not in found}
            found |= new
            open_ends += new.values()
        return sorted(found.values(), key=lambda group: group.number)

    def _append(self, group: FoldedLine) -> None:
        """Put a group behind all others."""
        group.number = self._count
        self._count += 1
        self._waiting.append((group.number, group))
        self._drop_moved()

    def _drop_moved(self) -> None:
        """Drop the places at the front whose groups have moved."""
        while self._waiting and self._waiting[0][0] != self._waiting[0][1].number:
            self._waiting.popleft()

    def _take(self) -> FoldedLine:
        group = self._waiting.popleft()[1]
        group.released = True
        group.following.clear()  # else each group would keep all later ones in memory
        same = self._by_key[group.key]
        same.pop(0)  # groups of one key leave in their order
        if not same:
            del self._by_key[group.key]
        self._drop_moved()
        if not self._waiting:
            self._newest.clear()
        return group


def _is_near(group: FoldedLine, line: Line) -> bool:
    """Return whether a line was written at nearly the same time as the first of a group."""
    return abs(group.line.time - line.time) <= MOST_APART


def _key(line: Line) -> _Key:
    """Return what equal lines have in common; a launcher's line never joins those of ranks."""
    return _without_time(line.text), line.stream, line.task, line.rank is None


def _without_time(text: str) -> str:
    # most lines need no search: they do not begin like a time
    begins_like_one = text[:1] in "[IWEF" or text[:1].isdecimal()
    written = _WRITTEN.match(text) if begins_like_one else None
    rest = text[written.end() :] if written else ""
    return rest or text  # a line that is only a time tells the time
