"""A run as it happens, for users: prefixed output lines, a status line, the outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TextIO

from msgspec import Struct

from dslaunch.launch.plan import Plan
from dslaunch.plural import counted
from dslaunch.report.decision_rows import decision_rows
from dslaunch.report.event_text import event_text
from dslaunch.report.folding import WINDOW, FoldedLine, LineFolder
from dslaunch.report.line_limit import MOST_SHOWN, LineLimit
from dslaunch.report.line_prefix import PrefixedLines, all_of
from dslaunch.report.outcome_rows import RunExtent, outcome_rows
from dslaunch.report.status_line import RunStatusLine
from dslaunch.report.status_screen import TICK, StatusScreen
from dslaunch.report.stop_messages import StopMessages
from dslaunch.run.events import Event, Line, LineBlock
from dslaunch.run.outcome import Outcome
from dslaunch.run.output_interval import output_interval
from dslaunch.run.progress import RunProgress
from dslaunch.run.reasons import BY_USER, EndReason
from dslaunch.run.view import StartStep, View
from dslaunch.terminal import one_line

LONG_STEP = 10.0
"""Without a status line: seconds of a step of the start after which it is printed; then after twice
as many, and so on."""
PLAIN_COLUMNS = 200
"""The length of such a line, at most."""


class ViewOptions(Struct, frozen=True):
    """What a `TerminalView` shows of a run, and how."""

    ranks: frozenset[int] | None = None
    """The ranks whose output is shown; None: all."""
    quiet: bool = False
    """Whether only the outcome is shown."""
    color: bool = False
    """Whether the output keeps its colors, and prefixes have some."""
    fold: bool = False
    """Whether equal lines of several ranks are shown once."""
    progress_formats: Sequence[str] = ()
    """`Cluster.progress`."""


class TerminalView(View):
    """A view for users: ranks' output on its own streams, everything else on standard error.

    On a terminal it has a status line, and may fold equal lines of several ranks. Its methods may
    be called from any thread.
    """

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        *,
        nodes: tuple[str, ...],
        options: ViewOptions = ViewOptions(),
        live: bool | None = None,
        width: Callable[[], int] = lambda: 80,
        clock: Callable[[], float] = time.monotonic,
        time_of_day: Callable[[], float] = time.time,
    ) -> None:
        """`live`: whether there is a status line; None: on a terminal. `width`: how many columns
        that has now. `clock`: seconds for durations; `time_of_day`: seconds since the epoch."""
        self.options = options
        self.clock = clock
        self.time_of_day = time_of_day
        progress = RunProgress(options.progress_formats)
        self.status = RunStatusLine(nodes, clock(), progress=progress)
        is_live = err.isatty() if live is None else live
        self.screen = StatusScreen(
            out,
            err,
            self.status,
            live=is_live and not options.quiet,
            width=width,
            clock=clock,
        )
        self.lines = PrefixedLines(aligned=out.isatty(), color=options.color)
        self.folder = LineFolder() if options.fold else None
        self.stopping: EndReason | None = None
        """Why all nodes are being stopped; None: they are not."""
        self.started: float | None = None
        """When the plan was made, or SLURM started the job, in seconds since the epoch."""
        self.ended: float | None = None
        """When it ended, by SLURM; None: now."""
        self._stop_messages = StopMessages()
        self._shown_at = 0.0
        """When folded lines were shown last: several at once are cheaper."""
        self._next_note = LONG_STEP
        """After how many seconds of a step of the start it is printed."""
        self._limit: LineLimit | None = None
        """Which lines are left out, where the ranks of a run wait for this view; None: none."""
        self._lock = threading.RLock()
        self._closed = threading.Event()

    def tick_in_background(self) -> None:
        """Update the screen also while nothing happens, until `close`."""
        if self.screen.live or self.folder is not None or not self.options.quiet:
            threading.Thread(target=self._tick, name="dslaunch-view", daemon=True).start()

    def close(self) -> None:
        """Show the lines that wait, remove the status line, and stop updating the screen."""
        with self._lock:
            self._closed.set()
            self._show_or_fold(self._stop_messages.rest())
            self._flush()
            self._note_left_out()
            self.screen.close()

    @property
    def ending(self) -> bool:
        """Whether the run has failed: later lines are consequences and are not shown."""
        return self.stopping is not None and self.stopping.code not in BY_USER

    def line(self, line: Line) -> None:
        """Show a line of a rank, unless the run has failed."""
        with self._lock:
            if self.screen.live:
                self.status.note_line(line)
            if not line.partial and self._shows(line.rank):
                self._show_lines([line])

    def block(self, block: LineBlock) -> None:
        """Show lines of a rank that arrived together, unless the run has failed."""
        with self._lock:
            if self.screen.live:
                self.status.note_block(block)
            if self._leaves_out(block) or not self._shows(block.rank):
                return
            may_be_stop_message = self.stopping is not None and block.rank is None
            if self.folder is not None or may_be_stop_message:
                self._show_lines(block)
            else:
                target = self.screen.stream(block.stream)
                self.screen.write(target, self.lines.block(block), colors=self.options.color)

    def _shows(self, rank: int | None) -> bool:
        """Return whether the output of a rank is shown now."""
        is_chosen = self.options.ranks is None or rank in self.options.ranks
        return is_chosen and not self.options.quiet and not self.ending

    def _show_lines(self, lines: Iterable[Line]) -> None:
        """Show lines, except what a launcher writes because it was stopped."""
        if self.stopping is not None:
            lines = [each for line in lines for each in self._stop_messages.shown(line)]
        self._show_or_fold(lines)

    def _show_or_fold(self, lines: Iterable[Line]) -> None:
        """Show lines, now or with equal ones."""
        if self.folder is None:
            for line in lines:
                target = self.screen.stream(line.stream)
                self.screen.write(target, f"{self.lines.text(line)}\n", colors=self.options.color)
            return
        now = self.clock()
        for line in lines:
            self.folder.add(line, now)
        if now - self._shown_at >= TICK or self.folder.full:
            self._shown_at = now
            self._show(self.folder.due(now))

    def _leaves_out(self, block: LineBlock) -> bool:
        """Return whether these lines are too many to show. Those of rank 0 never are."""
        if self._limit is None:
            return False
        count = block.text.count("\n") + 1
        return not self._limit.allows(count, now=self.clock(), always=not block.rank)

    def _note_left_out(self) -> None:
        """Print how many lines were not shown."""
        left_out = self._limit.take_left_out(self.clock()) if self._limit is not None else 0
        if left_out and not self.options.quiet:
            lines = counted(left_out, "line")
            text = f"{lines} of output not shown, more than {MOST_SHOWN} per second; see the logs"
            self._print(text)

    @property
    def unseen(self) -> bool:
        """Whether it shows no more lines."""
        return self.options.quiet or self.ending or self.screen.out.unread

    @property
    def output_closed(self) -> bool:
        """Whether the reader of its output has exited, as in `| head -1`."""
        return self.screen.out.unread or self.screen.err.unread

    def event(self, event: Event) -> None:
        """Update the status line; print the event's text, if it has one."""
        with self._lock:
            self.status.now = self.clock()
            self.status.note(event)
            is_told = event.reason is not None and event.reason == self.stopping
            text = None if is_told else event_text(event)
            if text is not None:
                self._flush()
            if event.kind == "stopping":
                self.stopping = event.reason
            elif event.kind == "restarting":
                self.stopping = None
            if text is not None and not self.options.quiet:
                self._print(text)
            self.screen.redraw_soon()

    def begin(self, step: StartStep, late: Collection[str]) -> None:
        """Show the step of the start in the status line, and the nodes that it waits for."""
        with self._lock:
            self.status.now = self.clock()
            is_new = step is not self.status.step
            if is_new:
                self._next_note = LONG_STEP
            self.status.begin(step, late)
            if is_new:
                self.screen.redraw()
            else:
                self.screen.redraw_soon()

    def follow(self, ranks: int, started: float | None) -> None:
        """Take up a run that has been running since `started`, in seconds since the epoch; None:
        it runs when its first output arrives."""
        with self._lock:
            self._set_ranks(ranks)
            self.started = started
            self._make_room(f"{host}:{ranks - 1}" for host in self.status.hosts)
            self.status.now = self.clock()
            if started is not None:
                self._begin_running(started)
            self.screen.redraw()

    def job(
        self, hosts: tuple[str, ...], *, started: float | None, ended: float | None = None
    ) -> None:
        """Note where a SLURM job runs and since when, in seconds since the epoch; it is pending if
        it has no start."""
        with self._lock:
            self.status.now = self.clock()
            self.started, self.ended = started, ended
            self.status.set_hosts(hosts)
            if started is None:
                self.status.begin(StartStep.PENDING, ())
            else:
                self._begin_running(started)
            self.screen.redraw()

    def _begin_running(self, started: float) -> None:
        """Note that the ranks have been running since then, in seconds since the epoch."""
        duration = max(0.0, self.time_of_day() - started)
        self.status.begin_running(self.status.now - duration)

    def canceling(self) -> None:
        """Show that SLURM is ending the job."""
        with self._lock:
            self.status.now = self.clock()
            self.status.begin_stop()
            self.screen.redraw()

    def tell(self, text: str) -> None:
        """Print a message about the run."""
        with self._lock:
            self._flush()
            self._print(text)

    def _print(self, text: str) -> None:
        """Print a message in one line, above the status line."""
        self.screen.write(self.screen.err, f"dslaunch: {one_line(text)}\n")

    def plan(self, plan: Plan, directory: Path) -> None:
        """Print the decisions with their reasons."""
        with self._lock:
            self.started = self.started or self.time_of_day()
            self._set_ranks(plan.world_size)
            # a restart may have other nodes
            self.status.set_hosts(tuple(node.host for node in plan.nodes))
            if self.folder is not None and self._limit is None:
                self._limit = LineLimit()
            self._make_room(f"{n.host}:{n.ranks[-1]}" for n in plan.nodes)
            if self.options.quiet:
                return
            ranks = counted(plan.world_size, "rank")
            nodes = counted(len(plan.nodes), "node")
            head = f"dslaunch: {ranks} on {nodes}, {plan.launcher}"
            width = self.screen.width() if self.screen.live else None
            rows = decision_rows(plan.decisions, width, directory=directory)
            self.screen.write(self.screen.err, "".join(f"{row}\n" for row in (head, *rows)))

    def outcome(self, outcome: Outcome, directory: Path | None) -> None:
        """Print how the run ended; the last output of a run."""
        self.close()
        rows = outcome_rows(
            outcome,
            directory,
            brief=self.options.quiet,
            width=self.screen.width(),
            extent=self._extent(),
        )
        for row in rows:
            self.screen.err.write(f"{row}\n")
        self.screen.leave_if_unread()

    def detached(self, run: str) -> None:
        """Print the commands for a run that continues in the background."""
        self.close()
        rows = (("follow", "attach"), ("output", "logs -f"), ("state", "status"), ("stop", "stop"))
        self.screen.err.write(f"dslaunch: {run} is running in the background\n")
        for what, command in rows:
            self.screen.err.write(f"  {what:<10} dslaunch {command} {run}\n")

    def tick(self) -> None:
        """Show the lines that have waited long enough, and the time."""
        with self._lock:
            if self._closed.is_set():
                return
            now = self.clock()
            if self.folder is not None:
                self._show(self.folder.due(now))
            if self._limit is not None and self._limit.is_note_due(now):
                self._note_left_out()
            if self.screen.live:
                self.screen.redraw_if_due(now)
            elif not self.options.quiet:
                self._note_long_step(now)

    def _note_long_step(self, now: float) -> None:
        """Print what the start waits for, if it has been long; SLURM's queue has messages."""
        self.status.now = now
        is_start = self.status.step not in (None, StartStep.PENDING)
        if is_start and now - self.status.since >= self._next_note:
            self._next_note *= 2
            self._print(self.status.text(PLAIN_COLUMNS))

    def _tick(self) -> None:
        while not self._closed.wait(TICK):
            self.tick()

    def _extent(self) -> RunExtent | None:
        """Return how large the run was; None: that is not known."""
        if self.started is None or not self.status.ranks or not self.status.hosts:
            return None
        nodes = len(self.status.hosts)
        ended = self.time_of_day() if self.ended is None else self.ended
        return RunExtent(self.status.ranks, nodes, self.started, ended)

    def _make_room(self, prefixes: Iterable[str]) -> None:
        """Make all prefixes as wide as the widest of these, and as that of all ranks together."""
        folded = [all_of(self.status.ranks, "rank")] if self.folder is not None else []
        self.lines.make_room([*prefixes, *folded])

    def _set_ranks(self, ranks: int) -> None:
        """Note how many ranks the run has. Equal lines arrive the later, the more ranks it has."""
        self.status.ranks = ranks
        if self.folder is not None:
            self.folder.window = WINDOW + output_interval(ranks)

    def _flush(self) -> None:
        """Show the lines that wait for equal ones."""
        if self.folder is not None:
            self._show(self.folder.rest())

    def _show(self, groups: Iterable[FoldedLine]) -> None:
        """Write lines; neighbors of one stream at once."""
        self.lines.ranks, self.lines.nodes = self.status.ranks, len(self.status.hosts)
        for stream, neighbors in groupby(groups, key=lambda group: group.line.stream):
            target = self.screen.stream(stream)
            text = "".join(f"{self.lines.folded(group)}\n" for group in neighbors)
            self.screen.write(target, text, colors=self.options.color)
