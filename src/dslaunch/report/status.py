"""The texts of `ps` and `status`."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath

from msgspec import Struct

from dslaunch.cluster.nodeset import fold, fold_numbers
from dslaunch.durations import age_text, elapsed_text, rounded_text
from dslaunch.report.outcome_rows import cause_rows
from dslaunch.report.progress_text import progress_parts, step_text
from dslaunch.report.rehearsal import VERDICTS
from dslaunch.report.straggler_text import straggler_rows
from dslaunch.run.events import Event
from dslaunch.run.exit_text import signal_name
from dslaunch.run.run_state import ENDED, State
from dslaunch.run.status import NodeStatus, RunStatus, Unknown
from dslaunch.slurm.job_status import status_of
from dslaunch.slurm.states import JobInfo
from dslaunch.slurm.verdict_text import status_reason
from dslaunch.slurm.waiting import estimated_start, start_text
from dslaunch.terminal import one_line

Row = tuple[str, ...]
RUNS_HEAD: Row = ("RUN", "STATE", "AGE", "TIME", "EXIT", "STEP", "NODES", "RANKS", "SCRIPT")
DROPPED = ("SCRIPT", "RANKS", "NODES", "STEP", "TIME")
"""Columns of the list of runs that narrow terminals lack, in this order."""
NODES_HEAD: Row = ("NODE", "STATE", "RANKS", "EXIT", "LAST EVENT")
JOBS_HEAD: Row = ("JOB", "STATE", "NODES", "STARTS", "REASON")
_STATES: Mapping[State, str] = {
    State.ACTIVE: "starting or ending",
    State.WAITING: "waiting",
    State.RUNNING: "running",
    State.PARTLY_RUNNING: "partly running",
    State.ORPHANED: "orphaned",
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.STOPPED: "stopped",
    State.UNKNOWN: "unknown",
}


def state_text(state: State) -> str:
    """Return the name of a state."""
    return _STATES[state]


def status_text(status: RunStatus) -> str:
    """Return the state of a run; of a rehearsal that has ended, what it says of the job."""
    if status.rehearsal is None:
        return state_text(status.state)
    return f"rehearsal: {VERDICTS[status.rehearsal]}"


def run_rows(statuses: Sequence[RunStatus], room: int | None = None) -> list[Row]:
    """Return a row per run below a head; with `room`, without the columns for which a terminal of
    that many columns has no room."""
    rows = [RUNS_HEAD, *map(run_row, statuses)]
    kept = list(range(len(RUNS_HEAD)))
    for name in DROPPED:
        widths = [max(len(row[column]) for row in rows) for column in kept]
        if room is None or sum(widths) + 2 * (len(widths) - 1) <= room:
            break
        kept.remove(RUNS_HEAD.index(name))
    return [tuple(row[column] for column in kept) for row in rows]


def run_row(status: RunStatus) -> Row:
    """Return a run's row in a list of runs."""
    record = status.record
    nodes = _folded(tuple(status.nodes or record.hosts))
    if record.slurm is not None:
        # folded, as SLURM reports them now
        given = dict.fromkeys(info.nodes for info in status.jobs if info.nodes)
        nodes = ",".join(given) or "-"
    return (
        status.run,
        status_text(status),
        age_text(time.time() - record.started),
        "-" if status.duration is None else elapsed_text(status.duration),
        exit_text(status) or "-",
        step_text(status.progress) or "-",
        nodes,
        str(record.world_size),
        PurePath(record.program).name or "-",
    )


@lru_cache
def _folded(hosts: tuple[str, ...]) -> str:
    """Return names in short: most runs of a list have the same nodes."""
    return fold(hosts)


def exit_text(status: RunStatus) -> str:
    """Return the exit code of a run, or the signal that ended it; empty: it has not ended."""
    if status.result is None or status.state not in ENDED:
        return ""
    signal = status.exit_signal
    return str(status.result.exit_code) if signal is None else signal_name(signal)


def head(status: RunStatus, width: int | None = None) -> str:
    """Return a run as one line, and on others how far its training is, and which ranks are slow;
    with `width`, wrapped to that many columns."""
    record = status.record
    what = record.launcher if record.slurm is None else f"job {record.slurm.job}"
    parts = [status_text(status), what, f"started {_ago(record.started)}"]
    if status.duration is not None:
        parts.append(f"{'ran' if status.ended else 'running for'} {elapsed_text(status.duration)}")
    code = exit_text(status)
    if code:
        parts.append(f"exit code {code}" if code.isdecimal() else code)
    lines = [one_line(f"{status.run}: {', '.join(parts)}")]
    if status.progress is not None:
        lines.append(f"progress: {', '.join(progress_parts(status.progress))}")
    lines += straggler_rows(status.slower)
    if width is not None:
        lines = [row for line in lines for row in _wrapped(line, width)]
    return "\n".join(lines)


def _wrapped(line: str, width: int) -> list[str]:
    """Return a line in several, broken between words."""
    return textwrap.wrap(
        line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


class NodeSummary(Struct, frozen=True):
    """What the row of a node shows, less its name, ranks and time: equal ones share a row."""

    state: str
    exits: str
    last: str
    left: tuple[int, ...]
    per_node: int
    """How many ranks it has."""


def node_rows(status: RunStatus) -> list[Row]:
    """Return a row per group of equal nodes below a head; empty: no node has reported."""
    alike: dict[NodeSummary, list[str]] = {}
    for host, node in status.nodes.items():
        alike.setdefault(_summary(node), []).append(host)
    rows = [_node_row(summary, hosts, status.nodes) for summary, hosts in alike.items()]
    return [NODES_HEAD, *rows] if rows else []


_OF_RANKS = {"exit": "exited"}
"""How the last event of a node reads if it is about a rank, where its kind does not."""


def _summary(node: NodeStatus) -> NodeSummary:
    last = node.events[-1] if node.events else None
    words = node.why or ""
    if last is not None and not words:
        words = last.kind if last.rank is None else f"rank {_OF_RANKS.get(last.kind, last.kind)}"
    return NodeSummary(node.state, _exits(node), words, node.left, len(node.ranks))


def _exits(node: NodeStatus) -> str:
    """Return the exit codes and signals of a node's ranks: `0`, or `1: rank 3, SIGTERM: rank 2`."""
    by_code: dict[str, list[int]] = {}
    for event in node.events:
        if event.kind == "exit" and event.rank is not None:
            by_code.setdefault(_exit_of(event), []).append(event.rank)
    if len(by_code) == 1 and len(next(iter(by_code.values()))) == len(node.ranks):
        return next(iter(by_code))
    texts = [f"{code}: rank {fold_numbers(ranks)}" for code, ranks in by_code.items()]
    return ", ".join(texts) or "-"


def _exit_of(event: Event) -> str:
    if event.signal is not None:
        return signal_name(event.signal)
    return "unknown" if event.code is None else str(event.code)


def _node_row(summary: NodeSummary, hosts: list[str], nodes: Mapping[str, NodeStatus]) -> Row:
    ranks = [rank for host in hosts for rank in nodes[host].ranks]
    times = [nodes[host].events[-1].time for host in hosts if nodes[host].events]
    when = f", {_ago(max(times))}" if times else ""
    left = f"; processes left: {', '.join(map(str, summary.left))}" if summary.left else ""
    what = f"{summary.last}{when}{left}"
    return (fold(hosts), summary.state, fold_numbers(ranks), summary.exits, what)


def job_rows(status: RunStatus) -> list[Row]:
    """Return a row per job, array task or component below a head; empty: not a SLURM run."""
    rows = [_job_row(info) for info in status.jobs]
    return [JOBS_HEAD, *rows] if rows else []


def _job_row(info: JobInfo) -> Row:
    name = info.array_task or info.job
    now = time.time()
    start = estimated_start(info, now)
    texts = [status_reason(status_of(info))]
    if start is not None:
        texts.append(start_text(start, now))
    why = ", ".join(filter(None, texts))
    return (name, info.state, info.nodes or "-", str(info.restarts + 1), why)


def why_rows(status: RunStatus, width: int | None = None) -> list[str]:
    """Return why a run ended, as at its end, or why its state is unknown, and where its output
    is."""
    lines: list[str] = []
    if status.result is not None:
        lines += cause_rows(status.result, width=width or 80)
    if status.state is State.UNKNOWN and status.unknown is not None:
        lines.append(one_line(f"reason: {unknown_text(status.unknown)}"))
    what = "logs" if status.record.slurm is None else "output"
    return lines + [one_line(f"{what}: {path}") for path in status.output]


def unknown_text(unknown: Unknown) -> str:
    """Return why the state of a run is unknown."""
    if unknown.code == "no-cluster":
        return "the run's nodes are unknown"
    return unknown.message or f"no answer from {fold(unknown.hosts)}"


def _ago(when: float) -> str:
    return f"{rounded_text(time.time() - when)} ago"
