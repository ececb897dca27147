"""The runs as their nodes know them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from dslaunch.errors import NodeFailure
from dslaunch.protocol.queries import RUN_ON_NODE, RUNS, Answers, RunOnNode
from dslaunch.protocol.values import InvalidAnswer, parse
from dslaunch.run.events import Event
from dslaunch.run.outcome import History, Outcome, failed, judge
from dslaunch.run.reach import Reached, ask
from dslaunch.run.watch import read_event

NodeState = Literal["running", "ended", "orphaned", "unreachable", "nothing"]


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
