"""The runs as the state directory of this machine, and the nodes themselves, know them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from dslaunch.cluster.model import Cluster
from dslaunch.errors import NodeFailure, UsageError
from dslaunch.protocol.queries import RUN_ON_NODE, RUNS, Answers, RunOnNode
from dslaunch.protocol.values import InvalidAnswer, parse
from dslaunch.run.events import Event
from dslaunch.run.outcome import History, Outcome, failed, judge
from dslaunch.run.reach import Reached, ask
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.record import ABOUT, CLUSTER, RESULT, is_held, runs_directory
from dslaunch.run.watch import read_event

LATEST = "latest"
Value = TypeVar("Value")
NodeState = Literal["running", "ended", "orphaned", "unreachable", "nothing"]


@dataclass(frozen=True, slots=True)
class Local:
    """A run that was started from this machine."""

    run: str
    directory: Path
    about: Mapping[str, Any]
    """What is written down at the start: program, hosts, detached, started."""
    living: bool
    """Whether its launcher is running."""
    result: Mapping[str, Any] | None

    def cluster(self) -> Cluster:
        """The cluster as it was when the run began. Raises UsageError if that cannot be read."""
        from pydantic import TypeAdapter

        path = self.directory / CLUSTER
        try:
            return TypeAdapter(Cluster).validate_json(path.read_text("utf-8"))
        except (OSError, ValueError):
            raise UsageError(
                f"{self.run}: its record of the cluster cannot be read: {path} is damaged, or of "
                "another version of dslaunch",
                hint="name the cluster file",
            ) from None


@dataclass(frozen=True, slots=True)
class OnNode:
    """One run as one node tells it."""

    state: NodeState
    ranks: tuple[int, ...] = ()
    events: tuple[Event, ...] = ()
    left: tuple[int, ...] = ()
    """Processes of it that live although its agent is gone."""
    why: str | None = None


@dataclass(frozen=True, slots=True)
class RunState:
    """One run as all its nodes tell it."""

    run: str
    cluster: str
    launcher: str
    started: float
    detached: bool
    hosts: tuple[str, ...]
    nodes: Mapping[str, OnNode] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """In a word: running, partly running, orphaned, ended well, failed, stopped, unknown."""
        states = {node.state for node in self.nodes.values()}
        if "orphaned" in states:
            return "orphaned"
        if "running" in states:
            return "running" if states == {"running"} else "partly running"
        if states == {"unreachable"} or not states:
            return "unknown"
        return {"ok": "ended well", "failed": "failed", "interrupted": "stopped"}[
            self.outcome().status
        ]

    def outcome(self) -> Outcome:
        """How it ended, or what has failed so far."""
        return judge(
            history_of(e for node in self.nodes.values() for e in node.events), last_lines={}
        )


def history_of(events: Iterable[Event]) -> History:
    """A history from what the nodes noted, in the order of our clock."""
    history = History(sorted(events, key=lambda event: event.time))
    for event in history.events:
        if event.kind == "stopping" and event.reason:
            history.interrupted, history.stopped_by = True, event.reason.by
            history.stopped_at = history.stopped_at or event.time
    ends = [e for e in history.events if e.kind == "ending" and e.error]
    if ends and not any(failed(e) and not e.asked for e in history.events):
        history.gave_up = EndReason(EndCode.NODE_ENDED, error=ends[0].error)
    return history


# ---------------------------------------------------------------- this machine


def local_runs(environ: Mapping[str, str]) -> list[Local]:
    """The runs that were started from this machine, by the time of their start, the newest last.

    Not by the directory's time, which every note in a record changes. Raises UsageError.
    """
    return sorted(_without_parts_of_jobs(_recorded(environ)), key=_started)


def _recorded(environ: Mapping[str, str]) -> list[Local]:
    """All records. Raises UsageError."""
    try:
        directories = sorted(path for path in runs_directory(environ).iterdir() if _is_own(path))
    except OSError:
        return []
    return [run for run in map(_local, directories) if run is not None]


def _without_parts_of_jobs(runs: list[Local]) -> Iterator[Local]:
    """The runs without those that ran within a job of SLURM that is one of them: the job is what
    was started, and is looked after as a whole."""
    jobs = [run.about["slurm"] for run in runs if isinstance(run.about.get("slurm"), dict)]
    tokens = {job.get("token") for job in jobs} - {"", None}
    for run in runs:
        if run.about.get("submission") not in tokens:
            yield run


def _started(run: Local) -> float:
    when = run.about.get("started")
    return float(when) if isinstance(when, int | float) else 0.0


def _is_own(path: Path) -> bool:
    """Whether a record is of this user: earlier versions let the group write beside it."""
    about = path.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()


def _local(directory: Path) -> Local | None:
    about = _json(directory / ABOUT)
    if about is None:
        return None
    return Local(directory.name, directory, about, is_held(directory), _json(directory / RESULT))


def recorded_result(directory: Path) -> Mapping[str, Any] | None:
    """The result that is recorded by now; None: the end was not seen."""
    return _json(directory / RESULT)


def find_local(name: str, environ: Mapping[str, str]) -> Local | None:
    """The run of that name, of which it is the only one that begins so, or the latest.

    Raises UsageError if several begin so.
    """
    runs = local_runs(environ)
    if name == LATEST:
        if not runs:
            raise UsageError("no run was started from this machine")
        return runs[-1]
    return one_of({run.run: run for run in runs}, name)


def find_exactly(name: str, environ: Mapping[str, str]) -> Local | None:
    """The run of exactly that name; None without one."""
    return next((run for run in _recorded(environ) if run.run == name), None)


def one_of(runs: Mapping[str, Value], name: str) -> Value | None:
    """The run of that name, or the only one that begins so; None without one.

    Raises UsageError if several begin so.
    """
    if name in runs:
        return runs[name]
    alike = [run for run in runs if run.startswith(name)]
    if len(alike) > 1:
        raise UsageError(f"several runs begin with {name!r}: {', '.join(alike)}")
    return runs[alike[0]] if alike else None


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


# ---------------------------------------------------------------- the nodes


def node_runs(reached: Reached) -> dict[str, RunState]:
    """Every run that the nodes know of, by name. Nodes that fail are in `reached.failures`."""
    answers = ask(reached, {RUNS: None})
    known = reached.sessions.keys() | reached.failures.keys()
    found: dict[str, RunState] = {}
    for host, answer in answers.items():
        for told in _runs_of(host, answer, reached):
            state = _joined(found.get(told.run), told, host, known)
            offset = reached.sessions[host].offset
            nodes = {**state.nodes, host: _on_node(host, told, offset)}
            found[told.run] = replace(state, nodes=nodes)
    return {run: _complete(state, reached.failures) for run, state in sorted(found.items())}


def _runs_of(host: str, answer: Answers, reached: Reached) -> Iterator[RunOnNode]:
    """The runs of one node; a record that is invalid is noted as a failure of the node."""
    for record in answer.get(RUNS) or ():
        try:
            yield parse(RUN_ON_NODE, record)
        except InvalidAnswer as error:
            why = f"its record of a run is invalid: {error}"
            reached.failures[host] = NodeFailure(host, "protocol", why)


def _joined(state: RunState | None, told: RunOnNode, host: str, known: Set[str]) -> RunState:
    """The run with the nodes that this one says it has. One node's word is not enough to leave
    out others: they are those that any node names, and all that know the run."""
    before = state or RunState(
        run=told.run,
        cluster=told.cluster,
        launcher=told.launcher,
        started=told.started,
        detached=told.detached,
        hosts=(),
    )
    named = [name for name in told.hosts if name in known]
    hosts = dict.fromkeys([*before.hosts, *named, host])
    return replace(before, hosts=tuple(hosts))


def _on_node(host: str, told: RunOnNode, offset: float) -> OnNode:
    events = tuple(read_event(host, event, offset) for event in told.typed_events())
    over = any(event.kind == "ended" for event in events)
    state: NodeState = "running" if told.living and not over else "ended"
    if not told.living and (told.left or not over):
        state = "orphaned" if told.left else "ended"
    return OnNode(state, told.ranks, events, told.left)


def _complete(state: RunState, failures: Mapping[str, NodeFailure]) -> RunState:
    """Every node of the run has its row, also one that did not answer."""
    nodes = {}
    for host in state.hosts:
        if host in state.nodes:
            nodes[host] = state.nodes[host]
        elif host in failures:
            nodes[host] = OnNode("unreachable", why=failures[host].message)
        else:
            nodes[host] = OnNode("nothing")
    return replace(state, nodes=nodes)


def as_data(state: RunState) -> dict[str, Any]:
    """A run's state for JSON."""
    nodes = {
        host: asdict(replace(node, events=())) | {"events": [e.as_dict() for e in node.events]}
        for host, node in state.nodes.items()
    }
    return asdict(replace(state, nodes={})) | {"state": state.state, "nodes": nodes}
