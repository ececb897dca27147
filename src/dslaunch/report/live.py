"""A run as it happens, for users: prefixed output lines, a status line, the outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TextIO

from dslaunch.launch.plan import Plan
from dslaunch.plural import counted
from dslaunch.report.decision_rows import decision_rows
from dslaunch.report.event_text import event_text
from dslaunch.report.folding import WINDOW, FoldedLine, LineFolder
from dslaunch.report.line_limit import MOST_SHOWN, LineLimit
from dslaunch.report.line_prefix import PrefixedLines, all_of
from dslaunch.report.outcome_rows import RunExtent, outcome_rows
from dslaunch.report.output_stream import OutputStream, leave_if_unread
from dslaunch.report.status_line import RunStatusLine
from dslaunch.report.stop_tracebacks import StopTracebacks
from dslaunch.run.events import Event, Line, LineBlock
from dslaunch.run.outcome import Outcome
from dslaunch.run.output_interval import output_interval
from dslaunch.run.progress import RunProgress
from dslaunch.run.reasons import BY_USER, EndReason
from dslaunch.run.view import StartStep, View
from dslaunch.terminal import one_line

_ROOM = 3
"""Columns that the status line leaves free for the terminal's `^C`."""
TICK = 0.1
"""Seconds between two looks at lines that wait to be folded."""
REDRAW = 1.0
"""Seconds between two states of the status line while nothing happens."""
MANY_NODES = 64
PAUSE_FOR_A_NODE = 1e-4
"""Seconds between two states of the status line, for each of many nodes."""
LONG_STEP = 10.0
"""Without a status line: seconds of a step of the start after which it is printed; then after twice
as many, and so on."""
PLAIN_COLUMNS = 200
"""The length of such a line, at most."""


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
        ranks: frozenset[int] | None = None,
        quiet: bool = False,
        color: bool = False,
        fold: bool = False,
        live: bool | None = None,
        progress_formats: Sequence[str] = (),
        width: Callable[[], int] = lambda: 80,
        clock: Callable[[], float] = time.monotonic,
        time_of_day: Callable[[], float] = time.time,
    ) -> None:
        self.out, self.err = OutputStream(out), OutputStream(err)
        self.out.tell = lambda why: self._write(self.err, f"dslaunch: {why}\n")
        self.ranks, self.quiet, self.color = ranks, quiet, color
        self.live = err.isatty() and not quiet if live is None else live and not quiet
        """Whether there is a status line."""
        self.lines = PrefixedLines(aligned=out.isatty(), color=color)
        self.folder = LineFolder() if fold else None
        self.width, self.clock, self.time_of_day = width, clock, time_of_day
        """How many columns the terminal has now; the seconds of the status line; the seconds since
        the epoch."""
        progress = RunProgress(progress_formats)
        self.status = RunStatusLine(nodes, clock(), progress=progress)
        self.stopping: EndReason | None = None
        """Why all nodes are being stopped; None: they are not."""
        self._tracebacks = StopTracebacks()
        self.started: float | None = None
        """When the plan was made, or SLURM started the job, in seconds since the epoch."""
        self.ended: float | None = None
        """When it ended, by SLURM; None: now."""
        self._one_terminal = self.out.is_terminal_of(self.err)
        """Whether the output and the status line are on the same terminal."""
        self._status_text = ""
        self._redrawn_at = 0.0
        """When the status line was made, by `clock`."""
        self._outdated = False
        """Whether something has happened since that it does not show."""
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
        if self.live or self.folder is not None or not self.quiet:
            threading.Thread(target=self._tick, name="dslaunch-view", daemon=True).start()

    def close(self) -> None:
        """Show the lines that wait, remove the status line, and stop updating the screen."""
        with self._lock:
            self._closed.set()
            for line in self._tracebacks.rest():
                self._show_line(line)
            self._flush()
            self._note_left_out()
            self._erase()
            self.live = False

    @property
    def ending(self) -> bool:
        """Whether the run has failed: later lines are consequences and are not shown."""
        return self.stopping is not None and self.stopping.code not in BY_USER

    def line(self, line: Line) -> None:
        """Show a line of a rank, unless the run has failed."""
        with self._lock:
            if self.live:
                self.status.note_line(line)
            chosen = self.ranks is None or line.rank in self.ranks
            if line.partial or self.quiet or self.ending or not chosen:
                return
            shown = [line] if self.stopping is None else self._tracebacks.shown(line)
            for each in shown:
                self._show_line(each)

    def _show_line(self, line: Line) -> None:
        """Show a line, now or with equal ones."""
        if self.folder is None:
            target = self.out if line.stream == "stdout" else self.err
            self._write(target, f"{self.lines.text(line)}\n", colors=self.color)
            return
        now = self.clock()
        self.folder.add(line, now)
        if now - self._shown_at >= TICK or self.folder.full:
            self._shown_at = now
            self._show(self.folder.due(now))

    def block(self, block: LineBlock) -> None:
        """Show lines of a rank that arrived together, unless the run has failed."""
        with self._lock:
            may_be_traceback = self.stopping is not None and block.rank is None
            if self._leaves_out(block):
                if self.live:
                    self.status.note_block(block)
                return
            if self.folder is not None or may_be_traceback:
                super().block(block)
                return
            if self.live:
                self.status.note_block(block)
            chosen = self.ranks is None or block.rank in self.ranks
            if self.quiet or self.ending or not chosen:
                return
            target = self.out if block.stream == "stdout" else self.err
            self._write(target, self.lines.block(block), colors=self.color)

    def _leaves_out(self, block: LineBlock) -> bool:
        """Return whether these lines are too many to show. Those of rank 0 never are."""
        if self._limit is None:
            return False
        count = block.text.count("\n") + 1
        return not self._limit.allows(count, now=self.clock(), always=not block.rank)

    def _note_left_out(self) -> None:
        """Print how many lines were not shown."""
        left_out = self._limit.take_left_out(self.clock()) if self._limit is not None else 0
        if left_out and not self.quiet:
            lines = counted(left_out, "line")
            text = f"{lines} of output not shown, more than {MOST_SHOWN} per second; see the logs"
            self._write(self.err, f"dslaunch: {text}\n")

    @property
    def unseen(self) -> bool:
        """Whether it shows no more lines."""
        return self.quiet or self.ending or self.out.unread

    @property
    def output_closed(self) -> bool:
        """Whether the reader of its output has exited, as in `| head -1`."""
        return self.out.unread or self.err.unread

    def event(self, event: Event) -> None:
        """Update the status line; print the event's text, if it has one."""
        with self._lock:
            self.status.now = self.clock()
            self.status.note(event)
            known = event.reason is not None and event.reason == self.stopping
            text = event_text(event)
            if text is not None and not known:
                self._flush()
            if event.kind == "stopping":
                self.stopping = event.reason
            elif event.kind == "restarting":
                self.stopping = None
            if text is not None and not known and not self.quiet:
                self._write(self.err, f"dslaunch: {one_line(text)}\n")
            self._redraw_soon()

    def begin(self, step: StartStep, late: Collection[str]) -> None:
        """Show the step of the start in the status line, and the nodes that it waits for."""
        with self._lock:
            self.status.now = self.clock()
            is_new = step is not self.status.step
            if is_new:
                self._next_note = LONG_STEP
            self.status.begin(step, late)
            if is_new:
                self._redraw()
            else:
                self._redraw_soon()

    def follow(self, ranks: int, started: float | None) -> None:
        """Take up a run that has been running since `started`, in seconds since the epoch; None:
        it runs when its first output arrives."""
        with self._lock:
            self._set_ranks(ranks)
            self.started = started
            self._make_room(f"{host}:{ranks - 1}" for host in self.status.hosts)
            now = self.clock()
            self.status.now = now
            if started is not None:
                self.status.begin_running(now - max(0.0, self.time_of_day() - started))
            self._redraw()

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
                self.status.begin_running(self.status.now - max(0.0, self.time_of_day() - started))
            self._redraw()

    def canceling(self) -> None:
        """Show that SLURM is ending the job."""
        with self._lock:
            self.status.now = self.clock()
            self.status.begin_stop()
            self._redraw()

    def tell(self, text: str) -> None:
        """Print a message about the run."""
        with self._lock:
            self._flush()
            self._write(self.err, f"dslaunch: {one_line(text)}\n")

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
            if self.quiet:
                return
            ranks, nodes = counted(plan.world_size, "rank"), counted(len(plan.nodes), "node")
            head = f"dslaunch: {ranks} on {nodes}, {plan.launcher}"
            rows = decision_rows(
                plan.decisions, self.width() if self.live else None, directory=directory
            )
            self._write(self.err, "".join(f"{row}\n" for row in (head, *rows)))

    def outcome(self, outcome: Outcome, directory: Path | None) -> None:
        """Print how the run ended; the last output of a run."""
        self.close()
        rows = outcome_rows(
            outcome, directory, brief=self.quiet, width=self.width(), extent=self._extent()
        )
        for row in rows:
            self.err.write(f"{row}\n")
        leave_if_unread(self.out, self.err)

    def detached(self, run: str) -> None:
        """Print the commands for a run that continues in the background."""
        self.close()
        rows = (("follow", "attach"), ("output", "logs -f"), ("state", "status"), ("stop", "stop"))
        self.err.write(f"dslaunch: {run} is running in the background\n")
        for what, command in rows:
            self.err.write(f"  {what:<10} dslaunch {command} {run}\n")

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
            idle = now - self.status.now >= REDRAW
            if self.live and (idle or (self._outdated and self._is_due(now))):
                self.status.now = now
                self._redraw()
            elif not self.live and not self.quiet:
                self._note_long_step(now)

    def _note_long_step(self, now: float) -> None:
        """Print what the start waits for, if it has been long; SLURM's queue has messages."""
        self.status.now = now
        is_start = self.status.step not in (None, StartStep.PENDING)
        if is_start and now - self.status.since >= self._next_note:
            self._next_note *= 2
            self._write(self.err, f"dslaunch: {one_line(self.status.text(PLAIN_COLUMNS))}\n")

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
            target = self.out if stream == "stdout" else self.err
            text = "".join(f"{self.lines.folded(group)}\n" for group in neighbors)
            self._write(target, text, colors=self.color)

    def _write(self, target: OutputStream, text: str, *, colors: bool = False) -> None:
        """Write lines, above the status line if there is one."""
        if not self.live:
            target.write(text, colors=colors)
            return
        self._update()
        if target is self.err or self._one_terminal:
            target.write_above(self._status_text, text, colors=colors)
        else:
            self._erase()
            target.write(text, colors=colors)
            self.err.redraw(self._status_text)

    def _erase(self) -> None:
        if self.live:
            self.err.redraw("")

    def _update(self) -> None:
        """Make the text of the status line, at most once in REDRAW seconds: output may be fast."""
        now = self.clock()
        if now - self.status.now >= REDRAW:
            self.status.now = now
            self._make_status()

    def _make_status(self) -> None:
        columns = max(0, self.width() - _ROOM)
        self._status_text = one_line(self.status.text(columns))

    def _redraw_soon(self) -> None:
        """Show the status line, of many nodes only once in a while: each of them has events, and to
        make its text takes time in proportion to the nodes."""
        if len(self.status.hosts) <= MANY_NODES or self._is_due(self.status.now):
            self._redraw()
        else:
            self._outdated = True

    def _is_due(self, now: float) -> bool:
        """Return whether the status line was made long enough ago to make it again."""
        pause = max(TICK, len(self.status.hosts) * PAUSE_FOR_A_NODE)
        return now - self._redrawn_at >= pause

    def _redraw(self) -> None:
        """Make the text of the status line and show it."""
        self._redrawn_at, self._outdated = self.clock(), False
        if self.live:
            self._make_status()
            self.err.redraw(self._status_text)
