"""What shows a run: to a person, to a program, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from dslaunch.launch.plan import Plan
    from dslaunch.run.events import Event, Line, LineBlock


class StartStep(Enum):
    """A step of the start of a run."""

    PENDING = auto()
    """SLURM has not started the job."""
    CONNECTING = auto()
    CHECKING = auto()
    COPYING = auto()
    STARTING = auto()


class View(Protocol):
    """Where a person, or a program, sees what a run prints and what happens to it."""

    def line(self, line: Line) -> None:
        """Show a line of output."""

    def block(self, block: LineBlock) -> None:
        """Show lines of one rank that arrived together."""
        for line in block:
            self.line(line)

    def event(self, event: Event) -> None:
        """Show an event."""


class RunView(View, Protocol):
    """A view of a run from its plan to its end."""

    @property
    def unseen(self) -> bool:
        """Whether it shows no more lines."""

    @property
    def output_closed(self) -> bool:
        """Whether the reader of its output has exited, as in `| head -1`."""

    def begin(self, step: StartStep, late: Collection[str]) -> None:
        """Show the step of the start, and the nodes that it waits for; called when they change."""

    def plan(self, plan: Plan, directory: Path) -> None:
        """Show what was decided, and where the run is recorded; nothing has started yet."""


def ignore(*values: object) -> None:
    """Do nothing with what is reported."""


class QuietView(View):
    """A view that shows nothing."""

    unseen = True
    output_closed = False

    def line(self, line: Line) -> None:
        """Show nothing."""

    def block(self, block: LineBlock) -> None:
        """Show nothing."""

    def event(self, event: Event) -> None:
        """Show nothing."""

    def begin(self, step: StartStep, late: Collection[str]) -> None:
        """Show nothing."""

    def plan(self, plan: Plan, directory: Path) -> None:
        """Show nothing."""


class Callbacks(View):
    """A view that calls functions."""

    def __init__(
        self,
        on_line: Callable[[Line], object] = ignore,
        on_event: Callable[[Event], object] = ignore,
    ) -> None:
        self._on_line, self._on_event = on_line, on_event

    def line(self, line: Line) -> None:
        """Hand a line of output on."""
        self._on_line(line)

    def event(self, event: Event) -> None:
        """Hand an event on."""
        self._on_event(event)
