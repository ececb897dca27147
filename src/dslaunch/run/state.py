"""The runs as the state directory of this machine, and the nodes themselves, know them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from dslaunch.cluster.model import Cluster
from dslaunch.errors import NodeFailure, UsageError
from dslaunch.run.events import Event
from dslaunch.run.outcome import History, Outcome, failed, judge
from dslaunch.run.reach import Reached, ask
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
        if event.kind == "stopping" and event.text:
            history.interrupted, history.stopped_by = True, event.text
            history.stopped_at = history.stopped_at or event.time
    ends = [e for e in history.events if e.kind == "ending" and e.text]
    if ends and not any(failed(e) and not e.asked for e in history.events):
        history.timed_out = ends[0].text
    return history


# ---------------------------------------------------------------- this machine


def local_runs(environ: Mapping[str, str]) -> list[Local]:
    """The runs that were started from this machine, the newest last."""
    try:
        directories = sorted(
            runs_directory(environ).iterdir(), key=lambda path: path.stat().st_mtime
        )
    except OSError:
        return []
    found = (_local(directory) for directory in directories)
    return [run for run in found if run is not None]


def _local(directory: Path) -> Local | None:
    about = _json(directory / ABOUT)
    if about is None:
        return None
    return Local(directory.name, directory, about, is_held(directory), _json(directory / RESULT))


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
    answers = ask(reached, runs=None)
    found: dict[str, RunState] = {}
    for host, answer in answers.items():
        for told in answer["runs"].get("value", ()):
            state = found.setdefault(told["run"], _empty(told))
            offset = reached.sessions[host].offset
            nodes = {**state.nodes, host: _on_node(host, told, offset)}
            found[told["run"]] = replace(state, nodes=nodes)
    return {run: _complete(state, reached.failures) for run, state in sorted(found.items())}


def _empty(told: Mapping[str, Any]) -> RunState:
    hosts = tuple(told["hosts"])
    return RunState(
        told["run"], told["cluster"], told["launcher"], told["started"], told["detached"], hosts
    )


def _on_node(host: str, told: Mapping[str, Any], offset: float) -> OnNode:
    events = tuple(read_event(host, message, offset) for message in told["events"])
    over = any(event.kind == "ended" for event in events)
    state: NodeState = "running" if told["living"] and not over else "ended"
    if not told["living"] and (told["left"] or not over):
        state = "orphaned" if told["left"] else "ended"
    return OnNode(state, tuple(told["ranks"]), events, tuple(told["left"]))


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
