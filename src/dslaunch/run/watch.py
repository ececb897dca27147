"""What arrives from the nodes becomes a history, lines for a view, and a record."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Literal, Protocol

from dslaunch.node.frames import NO_RANK, Output
from dslaunch.protocol.messages import NodeEvent
from dslaunch.run.events import Event, Line
from dslaunch.run.lines import Lines, printable
from dslaunch.run.outcome import History, Outcome, judge
from dslaunch.run.reasons import EndCode, EndReason, RankSource
from dslaunch.run.run_directory import RunDirectory

KEPT_LINES = 40


class View(Protocol):
    """Where a person, or a program, sees the run."""

    def line(self, line: Line) -> None:
        """A line of output."""

    def event(self, event: Event) -> None:
        """Something happened."""


class Watch:
    """One run as it is seen from here."""

    def __init__(
        self,
        view: View,
        record: RunDirectory | None = None,
        unseen: Callable[[], bool] = lambda: False,
        task: str = "",
    ) -> None:
        self.view, self.record = view, record
        self.task = task
        """Of a SLURM array, such as `12_3`; empty: the run is no task."""
        self.unseen = unseen
        """Whether nobody sees the lines, so that only the last of many are made."""
        self.history = History()
        self.lines: dict[tuple[RankSource, int], Lines] = defaultdict(Lines)
        self.last: dict[RankSource, deque[str]] = defaultdict(lambda: deque(maxlen=KEPT_LINES))
        self.left: list[str] = []

    def happened(self, event: Event) -> None:
        """Note an event; the end of a rank is said after the last that it wrote."""
        if event.kind == "exit":
            self.flush((event.host or "", event.rank))
        if event.kind == "ended":
            for source in [s for s in self.last if s[0] == event.host]:
                self.flush(source)
        self.history.note(event)
        if self.record is not None:
            self.record.event(event)
            if event.trace is not None:
                self.record.write(f"agent.{event.host}.log", event.trace)
        self.view.event(event)

    def output(self, host: str, output: Output, offset: float) -> None:
        """A piece of output, of a node whose clock is `offset` seconds ahead."""
        source = (host, None if output.rank == NO_RANK else output.rank)
        when = output.time - offset
        if self.record is not None:
            name = f"{self.task}.{host}" if self.task else host
            self.record.output(name, source[1], output.data, when, output.stream)
        data = _last_lines(output.data) if self.unseen() else output.data
        for line in self.lines[source, output.stream].feed(data, time.monotonic()):
            self._line(source, output.stream, line, when)

    def begin_again(self) -> None:
        """Forget what has happened and was written: another start of the same run begins."""
        self.flush_all()
        self.history = History()
        self.last.clear()

    def flush(self, source: RankSource) -> None:
        """Give what is left of a rank's streams when it has ended."""
        for stream in (1, 2):
            for line in self.lines[source, stream].rest():
                self._line(source, stream, line, time.time())

    def flush_all(self) -> None:
        """Give what is left of all streams."""
        for source in {source for source, _ in self.lines}:
            self.flush(source)

    def outcome(self) -> Outcome:
        """How it ended, as far as is known."""
        kept = {source: list(lines) for source, lines in self.last.items()}
        return judge(self.history, last_lines=kept)

    def _line(self, source: RankSource, stream: int, line: bytes, when: float) -> None:
        text = printable(line)
        self.last[source].append(text)
        name: Literal["stdout", "stderr"] = "stdout" if stream == 1 else "stderr"
        self.view.line(Line(when, *source, name, text, self.task))


def _last_lines(data: bytes) -> bytes:
    """As many as are kept, beginning with a line of their own; all, if they are no more."""
    last = data.rsplit(b"\n", KEPT_LINES + 1)[1:]
    return data if len(last) <= KEPT_LINES else b"\n" + b"\n".join(last)


def read_event(host: str, told: NodeEvent, offset: float) -> Event:
    """What an agent says, by our clock; its own is `offset` seconds ahead."""
    stopped = EndReason(EndCode.STOPPED, by=told.by or "somebody")
    return Event(
        time=told.time - offset,
        kind="ended" if told.event == "done" else told.event,
        host=host,
        rank=None if told.rank == NO_RANK else told.rank,
        code=told.code,
        signal=told.signal,
        pid=told.pid,
        asked=told.asked,
        process=told.process,
        error=told.error,
        contained=told.contained,
        reason=stopped if told.event == "stopping" else None,
        evidence=told.evidence,
    )
