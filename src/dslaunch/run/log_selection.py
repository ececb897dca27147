"""Which lines of a run's output are shown."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.errors import UsageError
from dslaunch.run.view import View
from dslaunch.terminal import without_color

if TYPE_CHECKING:
    from dslaunch.run.events import Event, Line, LineBlock


class LogSelection(Struct, frozen=True):
    """The lines to show: those that meet all conditions that are set."""

    ranks: frozenset[int] | None = None
    hosts: frozenset[str] | None = None
    since: float | None = None
    """Seconds since the epoch, as of all times here."""
    until: float | None = None
    matching: re.Pattern[str] | None = None
    """Found in the text of a line, without its colors."""
    tail: int | None = None
    """How many lines that meet the other conditions are shown, of all ranks together: the last
    ones, and with `follow` those that come later."""

    @property
    def needs_times(self) -> bool:
        """Return whether lines are selected by their times."""
        return self.since is not None or self.until is not None

    def has_source(self, host: str, rank: int | None) -> bool:
        """Return whether lines of this rank, or of the launcher of a node, may be shown."""
        if self.hosts is not None and host not in self.hosts:
            return False
        return self.ranks is None or rank in self.ranks

    def has(self, line: Line) -> bool:
        """Return whether a line meets all conditions but `tail`."""
        if not self.has_origin(line):
            return False
        return self.matching is None or bool(self.matching.search(without_color(line.text)))

    def has_origin(self, written: Line | LineBlock) -> bool:
        """Return whether output meets all conditions on who has written it, and when."""
        if not self.has_source(written.host, written.rank):
            return False
        if self.since is not None and written.time < self.since:
            return False
        return self.until is None or written.time <= self.until


EVERY_LINE = LogSelection()


def selection_of(
    *,
    ranks: Collection[int] | None = None,
    hosts: Collection[str] | None = None,
    since: float | None = None,
    until: float | None = None,
    matching: str | None = None,
    tail: int | None = None,
) -> LogSelection:
    """Return a selection of values that a user gives. Raises UsageError for an invalid one."""
    if isinstance(hosts, str):
        raise UsageError("hosts: one text instead of a list of texts", hint=f"hosts=[{hosts!r}]")
    if tail is not None and tail < 0:
        raise UsageError(f"tail={tail}: less than 0")
    return LogSelection(
        ranks=None if ranks is None else frozenset(ranks),
        hosts=None if hosts is None else frozenset(hosts),
        since=since,
        until=until,
        matching=compiled(matching, "matching="),
        tail=tail,
    )


def compiled(text: str | None, name: str) -> re.Pattern[str] | None:
    """Return a regular expression; `name` is that of the option. Raises UsageError."""
    try:
        return re.compile(text) if text is not None else None
    except re.error as error:
        raise UsageError(f"{name}{text}: invalid regular expression: {error}") from None


class SelectedLines(View):
    """A view that shows selected lines in another one, with `tail` only the last of them.

    The last lines are kept until `release`; lines that come later are shown at once.
    """

    def __init__(self, view: View, selection: LogSelection) -> None:
        self.view, self.selection = view, selection
        self.kept: deque[Line] | None = None
        if selection.tail is not None:
            self.kept = deque(maxlen=selection.tail)

    @property
    def full(self) -> bool:
        """Return whether as many lines are kept as are shown."""
        return self.kept is not None and len(self.kept) == self.kept.maxlen

    def line(self, line: Line) -> None:
        """Show or keep a line if it is selected."""
        if not self.selection.has(line):
            return
        if self.kept is None:
            self.view.line(line)
        elif not line.partial:
            self.kept.append(line)

    def block(self, block: LineBlock) -> None:
        """Show or keep lines of a rank that were written together if they are selected."""
        if self.kept is not None or self.selection.matching is not None:
            super().block(block)
        elif self.selection.has_origin(block):
            self.view.block(block)

    def event(self, event: Event) -> None:
        """Show an event."""
        self.view.event(event)

    def forget(self) -> None:
        """Drop the lines that are kept."""
        if self.kept is not None:
            self.kept.clear()

    def release(self) -> None:
        """Show the lines that are kept."""
        lines, self.kept = self.kept or (), None
        for line in lines:
            self.view.line(line)
