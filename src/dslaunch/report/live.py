"""A run as it happens: prefixed lines, a progress line, the reason of its end."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from dslaunch.cluster.nodeset import fold
from dslaunch.launch.decisions import Decision
from dslaunch.launch.plan import Plan
from dslaunch.plural import counted
from dslaunch.report.event_text import event_text, secondary_text
from dslaunch.report.outlet import Outlet, leave_if_unread
from dslaunch.run.events import Event, Line
from dslaunch.run.outcome import Outcome
from dslaunch.run.reasons import BY_USER, EndReason
from dslaunch.terminal import one_line, without_color

BAR = "│"
_ROOM = 3
"""Columns that a progress line leaves free, so that the terminal's `^C` fits behind it."""


@dataclass(slots=True)
class NodeProgress:
    """Which nodes got how far, as one line at the bottom of a terminal."""

    hosts: tuple[str, ...]
    connected: set[str] = field(default_factory=set)
    started: set[str] = field(default_factory=set)
    joined: set[str] = field(default_factory=set)
    over: bool = False
    """A rank has ended: who has not met the others will not, or need not."""
    text: str = ""

    def __post_init__(self) -> None:
        self.text = self._describe()

    def note(self, event: Event) -> None:
        """Count an event."""
        reached: set[str] | None = {
            "connected": self.connected,
            "started": self.started,
            "joined": self.joined,
        }.get(event.kind)
        if reached is not None and event.host is not None:
            reached.add(event.host)
            self.text = self._describe()
        self.over = event.kind == "exit" or (self.over and event.kind != "restarting")

    @property
    def complete(self) -> bool:
        """Whether all ranks have met, and the line has nothing more to say."""
        return self.over or len(self.joined) == len(self.hosts)

    def __str__(self) -> str:
        """The stage that is under way, and who is late for it."""
        return self.text

    def _describe(self) -> str:
        stages = (("connected", self.connected), ("started", self.started), ("joined", self.joined))
        name, reached = next((s for s in stages if len(s[1]) < len(self.hosts)), stages[-1])
        late = [host for host in self.hosts if host not in reached]
        waiting = f", waiting for {fold(late)}" if late else ""
        return f"nodes {name}: {len(reached)} of {len(self.hosts)}{waiting}"


class TerminalView:
    """For people: ranks' lines on standard output and error, everything else on standard error."""

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        *,
        nodes: tuple[str, ...],
        ranks: frozenset[int] | None = None,
        quiet: bool = False,
        colour: bool = False,
        width: Callable[[], int] = lambda: 80,
    ) -> None:
        self.out, self.err = Outlet(out), Outlet(err)
        self.out.tell = lambda why: self._write(self.err, f"dslaunch: {why}\n")
        self.ranks, self.quiet, self.colour = ranks, quiet, colour
        self.progress = NodeProgress(nodes)
        self.live = err.isatty() and not quiet
        self.width = width
        """How many columns the terminal has now."""
        self.stopping: EndReason | None = None
        """Why all nodes are being ended."""

    @property
    def ending(self) -> bool:
        """Whether the run has failed: what comes now are consequences, not for the screen."""
        return self.stopping is not None and self.stopping.code not in BY_USER

    def line(self, line: Line) -> None:
        """Show a line, unless it is a victim's after the run has failed."""
        chosen = self.ranks is None or line.rank in self.ranks
        if self.quiet or self.ending or not chosen:
            return
        text = line.text if self.colour else without_color(line.text)
        target = self.out if line.stream == "stdout" else self.err
        self._write(target, f"{prefix(line)}{text}\n", colors=self.colour)

    @property
    def unseen(self) -> bool:
        """Whether it shows no more lines."""
        return self.quiet or self.ending or self.out.unread

    def event(self, event: Event) -> None:
        """Move the progress line on; say what people must know at once."""
        self.progress.note(event)
        known = event.reason is not None and event.reason == self.stopping
        text = event_text(event)
        if event.kind == "stopping":
            self.stopping = event.reason
        elif event.kind == "restarting":
            self.stopping = None
        if text is not None and not known and not self.quiet:
            self._write(self.err, f"dslaunch: {one_line(text)}\n")
        self._redraw()

    def plan(self, plan: Plan, directory: Path) -> None:
        """Say in a few lines what was decided, and why."""
        if self.quiet:
            return
        ranks, nodes = counted(plan.world_size, "rank"), counted(len(plan.nodes), "node")
        head = f"dslaunch: {ranks} on {nodes}, {plan.launcher}"
        rows = decision_rows(plan.decisions, self.width() if self.live else None)
        text = "".join(f"{row}\n" for row in (head, *rows))
        self._write(self.err, f"{text}  run        {directory}\n")

    def outcome(self, outcome: Outcome, directory: Path) -> None:
        """Say how it ended: once, and at the very end."""
        self._erase()
        for row in outcome_rows(outcome, directory, brief=self.quiet, width=self.width()):
            self.err.write(f"{row}\n")
        leave_if_unread(self.out, self.err)

    def detached(self, run: str) -> None:
        """Say how to look after a run that goes on without us."""
        self._erase()
        rows = (("watch", "attach"), ("output", "logs -f"), ("state", "status"), ("end", "stop"))
        self.err.write(f"dslaunch: {run} goes on without this terminal\n")
        for what, command in rows:
            self.err.write(f"  {what:<10} dslaunch {command} {run}\n")

    def _write(self, target: Outlet, text: str, *, colors: bool = False) -> None:
        self._erase()
        target.write(text, colors=colors)
        self._redraw()

    def _erase(self) -> None:
        if self.live:
            self.err.redraw("")

    def _redraw(self) -> None:
        if self.live and not self.stopping and not self.progress.complete:
            self.err.redraw(one_line(str(self.progress))[: self.width() - _ROOM])


class JsonView:
    """For machines: one JSON object per line, events and output alike."""

    def __init__(self, out: TextIO, tell: Callable[[str], None] = lambda why: None) -> None:
        self.out = Outlet(out)
        self.out.tell = tell

    def line(self, line: Line) -> None:
        """A line of output."""
        self._write({"kind": "output"} | line.as_dict())

    @property
    def unseen(self) -> bool:
        """Whether it shows no more lines."""
        return self.out.failure is not None

    def event(self, event: Event) -> None:
        """Something happened."""
        text = event_text(event)
        self._write(event.as_dict() | ({"text": text} if text is not None else {}))

    def plan(self, plan: Plan, directory: Path) -> None:
        """What was decided."""
        decisions = [d.as_dict() for d in plan.decisions]
        self._write({"kind": "plan", "directory": str(directory), "decisions": decisions})

    def detached(self, run: str) -> None:
        """It goes on without us."""
        self._write({"kind": "detached", "run": run})

    def outcome(self, outcome: Outcome, directory: Path) -> None:
        """How it ended."""
        self._write({"kind": "outcome"} | outcome.as_dict())
        leave_if_unread(self.out)

    def _write(self, value: object) -> None:
        self.out.write(json.dumps(value) + "\n")


def prefix(line: Line) -> str:
    """`node01:3│`, or `node01│` for what the node's launcher itself says; `12_3 node01:3│` for a
    task of a SLURM array."""
    host = one_line(f"{line.task} {line.host}" if line.task else line.host)
    return f"{host}{BAR}" if line.rank is None else f"{host}:{line.rank}{BAR}"


def decision_rows(decisions: tuple[Decision, ...], columns: int | None = None) -> list[str]:
    """One row per decision: what, value, why; with `columns`, continued where they end."""
    width = max([10, *(len(d.what) for d in decisions)])
    rows = [
        one_line(f"  {d.what:<{width}} {d.value}  ({'assumed: ' if d.assumed else ''}{d.why})")
        for d in decisions
    ]
    if columns is None:
        return rows
    indent = " " * (width + 3)
    wrapper = textwrap.TextWrapper(
        max(columns, len(indent) + 20),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line for row in rows for line in wrapper.wrap(row)]


def outcome_rows(outcome: Outcome, directory: Path, *, brief: bool, width: int = 80) -> list[str]:
    """How a run ended: the cause, what it wrote last, what to do, what may be left."""
    if outcome.status == "ok" and not outcome.left and not outcome.unconfirmed:
        return [] if brief else [f"dslaunch: {one_line(outcome.message)}"]
    rows = [f"dslaunch: {one_line(outcome.message)}"]
    if outcome.last_lines and outcome.cause is not None:
        rows.append("  it wrote last:")
        rows += [f"    {_last_line(text)}" for text in outcome.last_lines]
    if outcome.what:
        rows.append(f"  reason: {one_line(outcome.what)}")
    if outcome.hint:
        rows.append(f"  hint: {one_line(outcome.hint)}")
    if outcome.alike:
        rows.append(f"  the same on {counted(len(outcome.alike), 'more rank')}: {_ranks(outcome)}")
    if outcome.secondary:
        more = f" and {len(outcome.secondary) - 1} more" if len(outcome.secondary) > 1 else ""
        first = one_line(secondary_text(outcome.secondary[0]))
        rows.append(f"  because of it also {first}{more}")
    if outcome.stacks:
        from dslaunch.report import stacks

        page = stacks.page(stacks.fold(outcome.stacks), width - 2)
        rows += [f"  {line}" for line in page.splitlines()]
    rows += _left_rows(outcome)
    logs = directory / "logs"
    kept = not outcome.jobs or logs.is_dir()  # a job that was attached to has its output alone
    return [*filter(None, rows), *([f"  logs: {logs}"] if kept else [])]


def _left_rows(outcome: Outcome) -> list[str]:
    """What is left on the nodes, as far as they were asked."""
    rows = []
    if outcome.left:
        rows.append(f"  could not be ended: {', '.join(outcome.left)}")
    if outcome.unconfirmed:
        hosts = ", ".join(outcome.unconfirmed)
        rows.append(f"  not confirmed that nothing is left on: {hosts}")
        rows.append(
            "  hint: `dslaunch clean` ends and removes what is left there; the next run on a"
        )
        rows.append("    node removes what is certainly over")
    elif outcome.nodes_checked and not outcome.left:
        rows.append("  nothing of the run is left on any node")
    return rows


def _ranks(outcome: Outcome) -> str:
    """Return the ranks that failed like the first, by node: `1-3 on n1, 4 on n2`."""
    by_host: dict[str, list[int]] = {}
    for host, rank in outcome.alike:
        if rank is not None:
            by_host.setdefault(host, []).append(rank)
    told = (f"{_ranges(ranks)} on {one_line(host)}" for host, ranks in by_host.items())
    return ", ".join(told)


def _ranges(numbers: list[int]) -> str:
    """Return numbers as ranges: `0-2,5`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in spans)


def _last_line(text: str) -> str:
    """Return a line that a rank wrote, without its colors; tabs are shown as they are."""
    return "\t".join(map(one_line, without_color(text).split("\t")))
