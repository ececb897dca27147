"""Turn what arrives from the nodes into a history, lines for a view, and a record."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Literal

from dslaunch.node.frames import NO_RANK, Output
from dslaunch.protocol.messages import NodeEvent
from dslaunch.run.endings import ends_of
from dslaunch.run.events import Event, Line, LineBlock
from dslaunch.run.lines import BarState, Block, Lines, printable
from dslaunch.run.outcome import History, Outcome, judge
from dslaunch.run.reasons import EndCode, EndReason, RankSource
from dslaunch.run.run_directory import RunDirectory
from dslaunch.run.view import View

UNKNOWN_USER = "an unknown user"
"""Who stopped a run, where the node does not know."""
KEPT_LINES = 40
"""Last lines of each rank that are kept for the diagnosis, of long ones their ends."""
_TERMINATES = re.compile(rb"^(?:\[rank\d{1,9}\]: ?)?\s{0,8}what\(\): .*", re.MULTILINE)
"""What native code writes of the exception that ends its process. The stacks of all threads follow,
which are longer than the lines that are kept."""


class Watch:
    """Collects the events and the output of one run."""

    def __init__(
        self,
        view: View,
        record: RunDirectory | None = None,
        unseen: Callable[[], bool] = lambda: False,
        task: str = "",
        output_closed: Callable[[], bool] = lambda: False,
    ) -> None:
        self.view, self.record = view, record
        self.task = task
        """Of a SLURM array, such as `12_3`; empty: the run is no task."""
        self.unseen = unseen
        """Whether the view shows no lines, so that only the last ones are kept."""
        self.output_closed = output_closed
        """Whether the reader of the view's output has exited."""
        self.history = History()
        self.lines: dict[tuple[RankSource, int], Lines] = defaultdict(Lines)
        self.heard: dict[tuple[RankSource, int], float] = {}
        """When the last piece of each stream was written."""
        self.last: dict[RankSource, list[str]] = defaultdict(list)
        """The last lines of each source: a deque takes 0.6 KiB, also where there are few."""
        self.terminated: dict[RankSource, str] = {}
        """The exception by which native code has ended a process of a rank."""
        self.left: list[str] = []
        self._sources: dict[str, list[RankSource]] = defaultdict(list)
        """The sources of each node, as often as they have streams."""

    def take(self, host: str, arrived: Output | NodeEvent, offset: float) -> Event | None:
        """Take what a node has sent, whose clock is `offset` seconds ahead; return an event."""
        if isinstance(arrived, Output):
            self.output(host, arrived, offset)
            return None
        event = read_event(host, arrived, offset)
        self.happened(event)
        return event

    def happened(self, event: Event) -> None:
        """Note an event; that a rank has ended is shown after the last line that it wrote."""
        if event.kind == "exit":
            self.flush((event.host or "", event.rank))
        if event.kind == "ended":
            for source in self._sources[event.host or ""]:
                self.flush(source)
        self.history.note(event)
        if self.record is not None:
            self.record.event(event)
            if event.trace is not None:
                self.record.write(f"agent.{event.host}.log", event.trace)
        self.view.event(event)

    def output(self, host: str, output: Output, offset: float) -> None:
        """Take a piece of output of a node whose clock is `offset` seconds ahead."""
        source = (host, None if output.rank == NO_RANK else output.rank)
        when = output.time - offset
        if self.record is not None:
            name = f"{self.task}.{host}" if self.task else host
            self.record.output(name, source[1], output.data, when, output.stream)
        if (source, output.stream) not in self.heard:
            self._sources[host].append(source)
        self.heard[source, output.stream] = when
        if b"what():" in output.data:
            causes = _TERMINATES.findall(output.data)
            self.terminated.update((source, printable(line)) for line in causes)
        data = _last_lines(output.data) if self.unseen() else output.data
        for found in self.lines[source, output.stream].feed(data, time.monotonic()):
            if isinstance(found, BarState):
                self._bar(source, output.stream, found, when)
            else:
                self._block(source, output.stream, found, when)

    def begin_again(self) -> None:
        """Forget all events and output: another start of the same run begins."""
        self.flush_all()
        self.history = History()
        self.last.clear()
        self.terminated.clear()

    def flush(self, source: RankSource) -> None:
        """Show what is left of the streams of a rank that has ended."""
        for stream in (1, 2):
            lines = self.lines.get((source, stream))
            if lines is None:  # nothing was written there
                continue
            for block in lines.rest():
                self._block(source, stream, block, self.heard[source, stream])

    def flush_all(self) -> None:
        """Show what is left of all streams."""
        for source in {source for source, _ in self.lines}:
            self.flush(source)

    def outcome(self) -> Outcome:
        """Return how the run ended, as far as is known."""
        kept = {source: lines.copy() for source, lines in self.last.items()}
        for source, line in self.terminated.items():
            lines = kept.setdefault(source, [])
            if line not in lines:
                lines.insert(0, line)
        return judge(self.history, last_lines=kept)

    def _block(self, source: RankSource, stream: int, block: Block, when: float) -> None:
        text = printable(block.text)
        self._keep_last(source, text, continues=block.continues)
        self.view.block(LineBlock(when, *source, _name(stream), text, self.task))

    def _keep_last(self, source: RankSource, text: str, *, continues: bool) -> None:
        """Keep the last lines. Of a line that is split only its beginning counts: an exception of
        some megabytes would push out its own name and what came before it."""
        if continues:
            _, newline, text = text.partition("\n")
            if not newline:
                return
        last = self.last[source]
        last.extend(map(ends_of, text.rsplit("\n", KEPT_LINES)[-KEPT_LINES:]))
        del last[:-KEPT_LINES]

    def _bar(self, source: RankSource, stream: int, state: BarState, when: float) -> None:
        text = printable(state.text)
        self.view.line(Line(when, *source, _name(stream), text, self.task, partial=True))


def _name(stream: int) -> Literal["stdout", "stderr"]:
    return "stdout" if stream == 1 else "stderr"


def _last_lines(data: bytes) -> bytes:
    """Return the last KEPT_LINES whole lines; all of `data` if it has no more."""
    last = data.rsplit(b"\n", KEPT_LINES + 1)[1:]
    return data if len(last) <= KEPT_LINES else b"\n" + b"\n".join(last)


def read_event(host: str, told: NodeEvent, offset: float) -> Event:
    """Return an agent's event with the time of our clock; its own is `offset` seconds ahead."""
    stopped = None
    if told.event == "stopping":
        stopped = EndReason(EndCode.STOPPED, by=told.by or UNKNOWN_USER)
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
        seconds=told.hang,
        contained=told.contained,
        reason=stopped,
        evidence=told.evidence,
    )
