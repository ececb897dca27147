"""A run as it happens, for programs: a JSON object per line."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TextIO

from dslaunch.json_text import json_text
from dslaunch.launch.plan import Plan
from dslaunch.report.event_text import event_text
from dslaunch.report.json_lines import json_lines
from dslaunch.report.output_stream import OutputStream, leave_if_unread
from dslaunch.run.events import Event, Line, LineBlock
from dslaunch.run.outcome import Outcome
from dslaunch.run.view import StartStep, View


class JsonView(View):
    """A view for programs: one JSON object per line for events and output."""

    def __init__(self, out: TextIO, tell: Callable[[str], None] = lambda why: None) -> None:
        self.out = OutputStream(out)
        self.out.tell = self._tell = tell

    def line(self, line: Line) -> None:
        """Print a line of output."""
        self._write({"kind": "output"} | line.as_data())

    def block(self, block: LineBlock) -> None:
        """Print lines of output."""
        self.out.write(json_lines(block, {"kind": "output"}))

    @property
    def unseen(self) -> bool:
        """Whether it shows no more lines."""
        return self.out.failure is not None

    @property
    def output_closed(self) -> bool:
        """Whether the reader of its output has exited, as in `| head -1`."""
        return self.out.unread

    def event(self, event: Event) -> None:
        """Print an event."""
        text = event_text(event)
        self._write(event.as_data() | ({"text": text} if text is not None else {}))

    def begin(self, step: StartStep, late: Collection[str]) -> None:
        """Do nothing: the events say how far the start is."""

    def tell(self, text: str) -> None:
        """Print a message about the run where no program reads it."""
        self._tell(text)

    def close(self) -> None:
        """Do nothing: each line is complete."""

    def follow(self, ranks: int, started: float | None) -> None:
        """Do nothing: the run's own record says it."""

    def job(
        self, hosts: tuple[str, ...], *, started: float | None, ended: float | None = None
    ) -> None:
        """Do nothing: the messages say it."""

    def canceling(self) -> None:
        """Do nothing: the messages say it."""

    def plan(self, plan: Plan, directory: Path) -> None:
        """Print the decisions."""
        decisions = [d.as_data() for d in plan.decisions]
        self._write({"kind": "plan", "directory": str(directory), "decisions": decisions})

    def detached(self, run: str) -> None:
        """Print that the run continues in the background."""
        self._write({"kind": "detached", "run": run})

    def outcome(self, outcome: Outcome, directory: Path | None) -> None:
        """Print how the run ended."""
        self._write({"kind": "outcome"} | outcome.as_data())
        leave_if_unread(self.out)

    def _write(self, value: object) -> None:
        self.out.write(json_text(value) + "\n")
