"""Equal lines of several ranks as one line. Pure: the caller passes the time."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from dslaunch.run.events import Line
from dslaunch.run.reasons import RankSource

WINDOW = 0.25
"""Seconds that a line waits for equal lines of other ranks."""
MOST_WAITING = 4096
"""Groups of lines that wait at a time: ranks may write faster than a terminal shows."""


@dataclass(slots=True)
class FoldedLine:
    """A line that one or more ranks, or launchers of nodes, have written."""

    line: Line
    """As the first of them has written it."""
    arrived: float
    """When that was, in seconds of any clock."""
    number: int
    """Counts all groups: a later one has a greater number."""
    sources: list[RankSource] = field(default_factory=list)
    """Each once, in the order of arrival."""


_Key = tuple[str, str, str, bool]


class LineFolder:
    """Groups equal lines that different ranks write to the same stream within WINDOW.

    No line is lost, and the lines of a rank stay in their order: a line joins a group only if all
    earlier lines of its rank are in earlier groups.
    """

    def __init__(self, window: float = WINDOW) -> None:
        self.window = window
        self._waiting: deque[FoldedLine] = deque()
        self._by_key: dict[_Key, list[FoldedLine]] = {}
        self._newest: dict[RankSource, int] = {}
        """The number of the group with the latest line of each rank."""
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
        key = _key(line)
        same = self._by_key.setdefault(key, [])
        newest = self._newest.get(source, -1)
        later = bisect_right(same, newest, key=lambda group: group.number)
        if later < len(same):
            group = same[later]
        else:
            group = FoldedLine(line, now, self._count)
            self._count += 1
            same.append(group)
            self._waiting.append(group)
        group.sources.append(source)
        self._newest[source] = group.number

    def due(self, now: float) -> Iterator[FoldedLine]:
        """Yield and forget the groups that have waited long enough, the oldest first."""
        # of too many lines, many are released at once: one by one they would be written so
        most = MOST_WAITING // 2 if self.full else MOST_WAITING
        while self._waiting:
            is_due = now - self._waiting[0].arrived >= self.window
            if not is_due and len(self._waiting) <= most:
                return
            yield self._take()

    def rest(self) -> Iterator[FoldedLine]:
        """Yield and forget all groups."""
        while self._waiting:
            yield self._take()

    def _take(self) -> FoldedLine:
        group = self._waiting.popleft()
        key = _key(group.line)
        same = self._by_key[key]
        same.pop(0)  # groups of one key leave in their order
        if not same:
            del self._by_key[key]
        if not self._waiting:
            self._newest.clear()
        return group


def _key(line: Line) -> _Key:
    """Return what equal lines have in common; a launcher's line never joins those of ranks."""
    return line.text, line.stream, line.task, line.rank is None
