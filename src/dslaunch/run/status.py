"""How a run stands: one value for all kinds of runs, and what its nodes report of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from dslaunch.cluster.model import Cluster
from dslaunch.errors import NodeFailure, UsageError
from dslaunch.protocol.queries import RUN_ON_NODE, RUNS, Answers, RunOnNode
from dslaunch.protocol.values import InvalidAnswer, parse
from dslaunch.run.events import Event
from dslaunch.run.outcome import History, Outcome, failed, judge
from dslaunch.run.reach import ReachedNodes, ask, reach
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.run_record import RunRecord
from dslaunch.run.run_state import ENDED, State, state_after
from dslaunch.run.watch import read_event

if TYPE_CHECKING:
    from dslaunch.slurm.states import JobInfo

NodeState = Literal["running", "ended", "orphaned", "unreachable", "nothing"]


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why it cannot be told now how a run stands."""

    code: str
    """`no-answer` of nodes, `no-cluster` where they are not known, or one of SLURM's failures."""
    hosts: tuple[str, ...] = ()
    """The nodes that did not answer."""
    message: str = ""
    """What SLURM's commands say."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One run as one node reports it."""

    state: NodeState
    ranks: tuple[int, ...] = ()
    events: tuple[Event, ...] = ()
    left: tuple[int, ...] = ()
    """Processes of it that live although its agent is gone."""
    why: str | None = None


@dataclass(frozen=True, slots=True)
class RunStatus:
    """How one run stands, whatever kind it is."""

    run: str
    state: State
    record: RunRecord
    """Of this machine, else as far as the nodes report it."""
    nodes: Mapping[str, NodeStatus] = field(default_factory=dict)
    """What its nodes report; empty: they report nothing, or were not asked."""
    jobs: tuple[JobInfo, ...] = ()
    """Of a SLURM job: the job, or its tasks or components."""
    result: Outcome | None = None
    """How it ended, or what has failed so far."""
    unknown: Unknown | None = None
    output: tuple[str, ...] = ()
    """Where on this machine its output is."""

    @property
    def may_continue(self) -> bool:
        """Whether it is not over, or may not be."""
        not_told = self.state is State.UNKNOWN and self.unknown is not None
        return self.state not in ENDED or not_told

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON: the same for all kinds of runs."""
        nodes = {
            host: asdict(replace(node, events=())) | {"events": [e.as_dict() for e in node.events]}
            for host, node in self.nodes.items()
        }
        return {
            "run": self.run,
            "state": self.state.value,
            **self.record.as_dict(),
            "nodes": nodes,
            "jobs": [asdict(job) for job in self.jobs],
            "result": None if self.result is None else self.result.as_dict(),
            "unknown": None if self.unknown is None else self.unknown.code,
        }


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


# ---------------------------------------------------------------- reports of nodes


@dataclass(frozen=True, slots=True)
class Reports:
    """What nodes were asked about all runs, and answered."""

    runs: Mapping[str, RunStatus] = field(default_factory=dict)
    """By the name that the agents carry."""
    failures: Mapping[str, NodeFailure] = field(default_factory=dict)
    """Of nodes that did not answer."""
    unasked: Mapping[str, UsageError] = field(default_factory=dict)
    """Runs whose nodes are not known, and why."""


def ask_clusters(clusters: Sequence[Cluster]) -> Reports:
    """Ask all nodes of these clusters about all runs."""
    runs: dict[str, RunStatus] = {}
    failures: dict[str, NodeFailure] = {}
    for cluster in clusters:
        with reach(cluster, cluster.nodes) as reached:
            runs |= node_runs(reached)
            failures |= reached.failures
    return Reports(runs, failures)


def node_runs(reached: ReachedNodes) -> dict[str, RunStatus]:
    """Every run that the nodes know of, by name. Nodes that fail are in `reached.failures`."""
    answers = ask(reached, {RUNS: None})
    reported: dict[str, dict[str, RunOnNode]] = {}
    for host, answer in answers.items():
        for one in _runs_of(host, answer, reached):
            reported.setdefault(one.run, {})[host] = one
    return {run: _joined(by_host, reached) for run, by_host in sorted(reported.items())}


def _runs_of(host: str, answer: Answers, reached: ReachedNodes) -> Iterator[RunOnNode]:
    """The runs of one node; a record that is invalid is noted as a failure of the node."""
    for record in answer.get(RUNS) or ():
        try:
            yield parse(RUN_ON_NODE, record)
        except InvalidAnswer as error:
            why = f"its record of a run is invalid: {error}"
            reached.failures[host] = NodeFailure(host, "protocol", why)


def _joined(reported: Mapping[str, RunOnNode], reached: ReachedNodes) -> RunStatus:
    """One run as its nodes report it: each of them has its row, also one that did not answer."""
    first = next(iter(reported.values()))
    nodes = {host: _on_node(host, reported, reached) for host in _hosts(reported, reached)}
    outcome = judge(history_of(e for node in nodes.values() for e in node.events), last_lines={})
    state = _state(nodes.values(), outcome)
    nothing_failed = outcome.status == "ok" and state not in ENDED
    record = RunRecord(
        program="",
        cluster=first.cluster,
        launcher=first.launcher,
        hosts=tuple(nodes),
        world_size=sum(len(node.ranks) for node in nodes.values()),
        detached=first.detached,
        agents=first.run,
        started=first.started,
    )
    result = None if nothing_failed else outcome
    return RunStatus(first.run, state, record, nodes, result=result)


def _hosts(reported: Mapping[str, RunOnNode], reached: ReachedNodes) -> tuple[str, ...]:
    """The nodes of a run: those that any node names, and all that know the run. One node's word
    is not enough to leave out others."""
    known = reached.sessions.keys() | reached.failures.keys()
    hosts: dict[str, None] = {}
    for host, one in reported.items():
        hosts |= dict.fromkeys(name for name in one.hosts if name in known)
        hosts[host] = None
    return tuple(hosts)


def _on_node(host: str, reported: Mapping[str, RunOnNode], reached: ReachedNodes) -> NodeStatus:
    told = reported.get(host)
    if told is None and host in reached.failures:
        return NodeStatus("unreachable", why=reached.failures[host].message)
    if told is None:
        return NodeStatus("nothing")
    offset = reached.sessions[host].offset
    events = tuple(read_event(host, event, offset) for event in told.typed_events())
    over = any(event.kind == "ended" for event in events)
    state: NodeState = "running" if told.living and not over else "ended"
    if not told.living and told.left:
        state = "orphaned"
    return NodeStatus(state, told.ranks, events, told.left)


def _state(nodes: Iterable[NodeStatus], outcome: Outcome) -> State:
    """How a run stands of which at least one node reports something."""
    states = {node.state for node in nodes}
    if "orphaned" in states:
        return State.ORPHANED
    if "running" in states:
        return State.RUNNING if states == {"running"} else State.PARTLY_RUNNING
    return state_after(outcome)
