"""How runs stand, in the words of `ps` and `status`."""

from __future__ import annotations

import time
from collections.abc import Mapping

from dslaunch.run.run_state import State
from dslaunch.run.status import NodeStatus, RunStatus, Unknown
from dslaunch.slurm.follow import state_reason
from dslaunch.slurm.states import JobInfo
from dslaunch.slurm.waiting import Estimates

Row = tuple[str, ...]
RUNS_HEAD: Row = ("RUN", "STATE", "NODES", "RANKS", "LAUNCHER", "STARTED")
NODES_HEAD: Row = ("NODE", "STATE", "RANKS", "LAST EVENT")
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
    """Return a state in a word or two."""
    return _STATES[state]


def run_row(status: RunStatus) -> Row:
    """A run in a list of runs."""
    record = status.record
    nodes = str(len(status.nodes or record.hosts))
    if record.slurm is not None:
        # folded, as SLURM has them now
        given = dict.fromkeys(info.nodes for info in status.jobs if info.nodes)
        nodes = ",".join(given) or "-"
    ranks = str(record.world_size)
    started = ago(record.started)
    return (status.run, state_text(status.state), nodes, ranks, record.launcher, started)


def head(status: RunStatus) -> str:
    """A run in a line."""
    record = status.record
    what = record.launcher if record.slurm is None else f"job {record.slurm.job}"
    return f"{status.run}: {state_text(status.state)}, {what}, started {ago(record.started)}"


def node_rows(status: RunStatus) -> list[Row]:
    """What each node reports, below its head; empty: none does."""
    rows = [_node_row(host, node) for host, node in status.nodes.items()]
    return [NODES_HEAD, *rows] if rows else []


def _node_row(host: str, node: NodeStatus) -> Row:
    last = node.events[-1] if node.events else None
    words = node.why or ""
    if last is not None:
        rank = f" of rank {last.rank}" if last.rank is not None else ""
        words = f"{last.kind}{rank}, {ago(last.time)}"
    left = f"; processes left: {', '.join(map(str, node.left))}" if node.left else ""
    return (host, node.state, _ranks(node.ranks), words + left)


def _ranks(ranks: tuple[int, ...]) -> str:
    """Consecutive ranks as `0-7`."""
    if not ranks:
        return ""
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"


def job_rows(status: RunStatus) -> list[Row]:
    """The job, or each task and component of it, below a head; empty: the run is none."""
    rows = [_job_row(info) for info in status.jobs]
    return [JOBS_HEAD, *rows] if rows else []


def _job_row(info: JobInfo) -> Row:
    name = f"{info.array}_{info.task}" if info.array else info.job
    start = Estimates().news(info, time.time())
    why = ", ".join(filter(None, (state_reason(info), start)))
    return (name, info.state, info.nodes or "-", str(info.restarts + 1), why)


def why_rows(status: RunStatus) -> list[str]:
    """Why it ended, or is unknown, what to do, and where its output is."""
    lines: list[str] = []
    if status.result is not None:
        lines.append(status.result.message)
        lines += [f"reason: {status.result.what}"] if status.result.what else []
        lines += [f"hint: {status.result.hint}"] if status.result.hint else []
    if status.state is State.UNKNOWN and status.unknown is not None:
        lines.append(f"reason: {unknown_text(status.unknown)}")
    what = "logs" if status.record.slurm is None else "output"
    return lines + [f"{what}: {path}" for path in status.output]


def unknown_text(unknown: Unknown) -> str:
    """Return why it cannot be told how a run stands."""
    if unknown.code == "no-cluster":
        return "its nodes are not known"
    return unknown.message or f"no answer from {', '.join(unknown.hosts)}"


def ago(when: float) -> str:
    """A time as people say it of a run: `12 s ago`, `3 h ago`, `5 d ago`."""
    seconds = max(0.0, time.time() - when)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
