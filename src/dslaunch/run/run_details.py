"""All that is known of a run, gathered from its records and, where needed, from its nodes or SLURM.

Every part may be missing: a run that is not over, one that was started from another machine
and one that SLURM runs have different records.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from dslaunch.errors import DslaunchError
from dslaunch.run.events import Event, LineBlock
from dslaunch.run.handle import RunHandle
from dslaunch.run.json_lines import SkippedLines
from dslaunch.run.lines import BarState, Block, Lines, printable
from dslaunch.run.local_runs import LocalRun
from dslaunch.run.progress_history import ProgressCollector, ProgressHistory
from dslaunch.run.reasons import RankSource
from dslaunch.run.recorded_events import read_events
from dslaunch.run.recorded_output import sample_output
from dslaunch.run.recorded_run import RecordedRun, recorded_run
from dslaunch.run.run_directory import LOGS
from dslaunch.run.run_state import State
from dslaunch.run.status import Reports, RunStatus
from dslaunch.run.usage import read_usage
from dslaunch.run.usage_history import RankLateness, UsageCurve, UsageHistory

MOST_OUTPUT = 64 << 20
"""Bytes of output that are read; of more, parts of every log."""


class RunDetails(Struct, frozen=True):
    """All that is known of one run."""

    status: RunStatus
    recorded: RecordedRun
    time: float
    """When this was gathered, in seconds since the epoch."""
    events: tuple[Event, ...] = ()
    """In the order of time."""
    progress: ProgressHistory = field(default_factory=ProgressHistory)
    last_lines: Mapping[RankSource, tuple[str, ...]] = field(default_factory=dict)
    """The last output of each rank, and of the launchers of the nodes (rank None)."""
    usage: tuple[UsageCurve, ...] = ()
    late: tuple[RankLateness, ...] = ()
    """The ranks that entered collectives late, the latest first."""
    damaged_lines: int = 0
    """Lines of the recorded events that were skipped."""
    notices: tuple[str, ...] = ()
    """Why parts may be missing, as texts."""

    @property
    def name(self) -> str:
        """Return the name of the run."""
        return self.status.run

    @property
    def started(self) -> float:
        """Return when the first attempt began, in seconds since the epoch."""
        first = self.events[0].time if self.events else self.status.record.started
        return min(first, self.status.record.started)

    @property
    def ended(self) -> float | None:
        """Return when it ended, in seconds since the epoch; None: not yet, or not known."""
        if self.status.may_continue or not self.events:
            return None
        return self.events[-1].time


def run_details(run: RunHandle, local: LocalRun | None) -> RunDetails:
    """Return all that is known of a run. `local`: this machine's record of it.

    Its nodes are asked only if this machine has not recorded everything, and SLURM if the end of
    the job is not recorded. Raises DslaunchError if nothing is known.
    """
    notices: list[str] = []
    status = _status(run, local, notices)
    recorded = _recorded(status, local)
    skipped = SkippedLines()
    events: tuple[Event, ...] = ()
    if local is not None:
        recorded_events = read_events(local.directory, skipped)
        events = tuple(sorted(recorded_events, key=lambda event: event.time))
    if not any(event.kind == "started" for event in events):
        events = _with_reported(events, status)
    collector = ProgressCollector(() if local is None else local.record.progress_patterns)
    _read_output(run, local, collector, notices)
    status = _running(status, events)
    details = RunDetails(
        status=status,
        recorded=recorded,
        time=time.time(),
        events=events,
        progress=collector.history(),
        last_lines={source: tuple(lines) for source, lines in collector.last_lines.items()},
        damaged_lines=skipped.count,
        notices=tuple(dict.fromkeys(notices)),
    )
    if local is None:
        return details
    end = details.ended or details.time
    history = UsageHistory.of(read_usage(local.directory), details.started, end)
    return replace(details, usage=history.curves(), late=history.notably_late())


def _status(run: RunHandle, local: LocalRun | None, notices: list[str]) -> RunStatus:
    """Return the state of a run; nodes that do not answer are noted."""
    needs_nodes = local is None or (local.record.detached and local.record.slurm is None)
    if not needs_nodes:
        return run.summary(Reports())
    try:
        return run.status()
    except DslaunchError as error:
        if local is None:
            raise
        notices.append(f"the nodes could not be asked: {error.message}")
        return run.summary(Reports())


def _recorded(status: RunStatus, local: LocalRun | None) -> RecordedRun:
    if local is not None:
        return recorded_run(local)
    return RecordedRun(status.run, status.record, outcome=status.result)


def _with_reported(events: tuple[Event, ...], status: RunStatus) -> tuple[Event, ...]:
    """Return the recorded events and those that the nodes of a detached run have reported."""
    reported = [event for node in status.nodes.values() for event in node.events]
    return tuple(sorted((*events, *reported), key=lambda event: event.time))


def _running(status: RunStatus, events: tuple[Event, ...]) -> RunStatus:
    """Return the status; a run whose launcher is alive and whose ranks have started is running."""
    is_started = any(event.kind == "started" for event in events)
    if status.state is State.ACTIVE and is_started:
        return replace(status, state=State.RUNNING)
    return status


# ---------------------------------------------------------------- output


def _read_output(
    run: RunHandle, local: LocalRun | None, collector: ProgressCollector, notices: list[str]
) -> None:
    """Read the output of all ranks: as recorded here, else as its nodes or SLURM have it."""
    if local is not None and (local.directory / LOGS).is_dir():
        _read_recorded(local, collector)
        return
    is_elsewhere = local is None or local.record.detached or local.record.slurm is not None
    if not is_elsewhere:
        return
    try:
        run.show_logs(collector, notices.append, follow=False)
    except (DslaunchError, OSError) as error:
        notices.append(f"the output could not be read: {error}")


def _read_recorded(local: LocalRun, collector: ProgressCollector) -> None:
    lines: defaultdict[tuple[str, int | None, int], Lines] = defaultdict(Lines)
    sources: dict[tuple[str, int | None, int], float] = {}
    for piece in sample_output(local.directory, MOST_OUTPUT):
        key = (piece.host, piece.rank, piece.stream)
        data = piece.data
        if piece.after_gap:
            # lines that are cut off would be read as wrong numbers
            lines[key] = Lines()
            data = data.partition(b"\n")[2]
        sources[key] = piece.time
        for found in lines[key].feed(data, piece.time):
            collector.block(_block(key, piece.time, found))
    for key, when in sources.items():
        for rest in lines[key].rest():
            collector.block(_block(key, when, rest))


def _block(key: tuple[str, int | None, int], when: float, found: Block | BarState) -> LineBlock:
    host, rank, stream = key
    name: Literal["stdout", "stderr"] = "stdout" if stream == 1 else "stderr"
    return LineBlock(when, host, rank, name, printable(found.text))
