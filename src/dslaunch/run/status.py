"""The state of a run: one value for all kinds of runs, and the reports of its nodes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from dslaunch.cluster.model import Cluster
from dslaunch.cluster.nodeset import LIMIT, InvalidNodeSet, expand
from dslaunch.errors import NodeFailure, UsageError
from dslaunch.protocol.queries import RUNS, Answers, RunOnNode
from dslaunch.recorded import as_json_data
from dslaunch.run.events import Event
from dslaunch.run.interrupts import Until, never
from dslaunch.run.kept_progress import RunsOfCluster, kept_progress
from dslaunch.run.outcome import History, Outcome, failed, judge
from dslaunch.run.progress import Progress
from dslaunch.run.reach import ReachedNodes, ask, ask_each, reach_clusters
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.rehearsal_result import Verdict
from dslaunch.run.run_record import RunRecord
from dslaunch.run.run_state import ENDED, State, state_after
from dslaunch.run.slower_rank import SlowerRank
from dslaunch.run.watch import read_event

if TYPE_CHECKING:
    from dslaunch.slurm.states import JobInfo

CLUSTERS_AT_ONCE = 8
"""Clusters that are asked at the same time, each of them `ssh.fanout` nodes at a time."""
MOST_NAMED = 1_000_000
"""Names of nodes in all runs that one node reports, at most: 100 runs of 10,000 nodes. Folded, they
are a short text, and to expand them takes a second."""
TOO_MANY_RUNS = "remove ended runs: `dslaunch clean --ended`"
NodeState = Literal["running", "ended", "orphaned", "unreachable", "nothing"]


class Unknown(Struct, frozen=True):
    """Why the state of a run is unknown now."""

    code: str
    """`no-answer` of nodes, `no-cluster` where they are not known, or one of SLURM's failures."""
    hosts: tuple[str, ...] = ()
    """The nodes that did not answer."""
    message: str = ""
    """The message of SLURM's commands."""


class NodeStatus(Struct, frozen=True):
    """One run as one node reports it."""

    state: NodeState
    ranks: tuple[int, ...] = ()
    events: tuple[Event, ...] = ()
    left: tuple[int, ...] = ()
    """Its processes that are running although its agent has exited."""
    why: str | None = None


class RunStatus(Struct, frozen=True):
    """The state of one run of any kind."""

    run: str
    state: State
    record: RunRecord
    """This machine's record, else what the nodes report."""
    nodes: Mapping[str, NodeStatus] = field(default_factory=dict)
    """What its nodes report; empty: they report nothing, or were not asked."""
    jobs: tuple[JobInfo, ...] = ()
    """Of a SLURM job: the job, or its tasks or components."""
    result: Outcome | None = None
    """How it ended, or what has failed so far."""
    unknown: Unknown | None = None
    output: tuple[str, ...] = ()
    """Where on this machine its output is."""
    directory: str = ""
    """Its record on this machine; empty: there is none."""
    ended: float | None = None
    """When it ended, in seconds since the epoch; None: it has not, or that is unknown."""
    progress: Progress | None = None
    """What its last output says about the training; None: nothing, or it was not read."""
    slower: tuple[SlowerRank, ...] = ()
    """The ranks of the latest attempt that the launcher has named as slow."""
    rehearsal: Verdict | None = None
    """What it has shown, if it was a rehearsal and has ended."""

    @property
    def duration(self) -> float | None:
        """Return for how many seconds it has run; None: unknown, or it waits in SLURM's queue."""
        if self.ended is not None:
            return max(0.0, self.ended - self.began)
        going_on = self.may_continue and self.state not in (State.WAITING, State.UNKNOWN)
        return max(0.0, time.time() - self.began) if going_on else None

    @property
    def began(self) -> float:
        """Return when it was started, or when SLURM started the job."""
        started = [info.started for info in self.jobs if info.started]
        return float(min(started)) if started else self.record.started

    @property
    def exit_signal(self) -> int | None:
        """Return the signal that ended the rank behind a failure; None: no signal did."""
        cause = None if self.result is None else self.result.cause
        return None if cause is None else cause.signal

    @property
    def may_continue(self) -> bool:
        """Return whether it is, or may be, still running."""
        not_told = self.state is State.UNKNOWN and self.unknown is not None
        return self.state not in ENDED or not_told

    def as_data(self) -> dict[str, Any]:
        """Return the fields for JSON: the same for all kinds of runs."""
        return {
            "run": self.run,
            "state": self.state.value,
            **self.record.as_data(),
            "nodes": as_json_data(self.nodes),
            "jobs": [to_builtins(job) for job in self.jobs],
            "result": None if self.result is None else self.result.as_data(),
            "unknown": None if self.unknown is None else self.unknown.code,
            "ended": self.ended,
            "duration": self.duration,
            "exit_code": None if self.result is None else self.result.exit_code,
            "signal": self.exit_signal,
            "progress": None if self.progress is None else self.progress.as_data(),
            "slower": [to_builtins(each) for each in self.slower],
            "rehearsal": self.rehearsal,
            "directory": self.directory,
            "output": list(self.output),
        }


def history_of(events: Iterable[Event]) -> History:
    """Return a history of the nodes' events, in the order of our clock."""
    history = History(sorted(events, key=lambda event: event.time))
    for event in history.events:
        if event.kind == "stopping" and event.reason is not None:
            history.stop = event.reason
            history.stopped_at = history.stopped_at or event.time
    history.gave_up = gave_up(history.events)
    return history


def gave_up(events: Sequence[Event]) -> EndReason | None:
    """Return why the nodes of a detached run have ended it, if no failure of a rank was the
    reason."""
    ends = [event for event in events if event.kind == "ending" and event.error]
    if not ends or any(failed(event) and not event.asked for event in events):
        return None
    hangs = [event.seconds for event in ends if event.seconds is not None]
    if hangs:
        return EndReason(EndCode.HANG, seconds=hangs[0])
    return EndReason(EndCode.NODE_ENDED, error=ends[0].error)


def recorded_nodes(record: RunRecord, events: Sequence[Event]) -> dict[str, NodeStatus]:
    """Return the nodes of an attached run that has ended, by the events of its last attempt."""
    by_host: dict[str | None, list[Event]] = defaultdict(list)
    for event in events:
        by_host[event.host].append(event)
    found = {}
    for host in record.hosts:
        own = tuple(by_host[host])
        ranks = {event.rank for event in own if event.kind == "started"}
        lost = next((event.error for event in own if event.kind == "lost"), None)
        found[host] = NodeStatus(
            state="ended" if lost is None else "unreachable",
            ranks=tuple(sorted(rank for rank in ranks if rank is not None)),
            events=own,
            why=lost,
        )
    return found


def slower_ranks(events: Sequence[Event]) -> tuple[SlowerRank, ...]:
    """Return the ranks that events of one attempt name as slow."""
    return tuple(slow for event in events for slow in event.slower or ())


def last_end(nodes: Iterable[NodeStatus]) -> float | None:
    """Return when the last of the nodes ended; None: not all have, as far as they report."""
    ends = [[e.time for e in node.events if e.kind == "ended"] for node in nodes]
    if not ends or not all(ends):
        return None
    return max(max(times) for times in ends)


# ---------------------------------------------------------------- reports of nodes


class Reports(Struct, frozen=True):
    """The nodes' reports of all runs."""

    runs: Mapping[str, RunStatus] = field(default_factory=dict)
    """By the name that the agents carry."""
    failures: Mapping[str, NodeFailure] = field(default_factory=dict)
    """Of nodes that did not answer."""
    unasked: Mapping[str, UsageError] = field(default_factory=dict)
    """Runs whose nodes are not known, and why."""


def ask_clusters(
    clusters: Sequence[Cluster], has_progress: Callable[[RunStatus], bool] = lambda run: False
) -> Reports:
    """Ask all nodes of these clusters about all runs, several clusters at the same time, and about
    the progress of detached runs for which `has_progress` returns True."""
    runs: dict[str, RunStatus] = {}
    failures: dict[str, NodeFailure] = {}
    for start in range(0, len(clusters), CLUSTERS_AT_ONCE):
        group = clusters[start : start + CLUSTERS_AT_ONCE]
        with reach_clusters(group) as several:
            answered = ask_each(several, {RUNS: None})
            asked: list[RunsOfCluster] = []
            for cluster, reached, answers in zip(group, several, answered, strict=True):
                found = _runs_in(answers, reached)
                runs |= found
                failures |= reached.failures
                asked.append(RunsOfCluster(found, reached, cluster.progress))
            runs |= with_progress(asked, has_progress)
    return Reports(runs, failures)


def with_progress(
    asked: Sequence[RunsOfCluster],
    has_progress: Callable[[RunStatus], bool],
) -> dict[str, RunStatus]:
    """Return the detached runs of these for which `has_progress` returns True, with the progress
    that their nodes have kept. Raises Interrupted."""
    chosen = [replace(each, runs=_chosen(each.runs, has_progress)) for each in asked]
    found = kept_progress(chosen)
    return {
        name: replace(run, progress=found.get(name))
        for each in chosen
        for name, run in each.runs.items()
    }


def _chosen(
    runs: Mapping[str, RunStatus], has_progress: Callable[[RunStatus], bool]
) -> dict[str, RunStatus]:
    # the output of other runs is with their launcher
    return {name: run for name, run in runs.items() if run.record.detached and has_progress(run)}


def node_runs(reached: ReachedNodes, *, until: Until = never) -> dict[str, RunStatus]:
    """Return every run that the nodes know of, by name. Nodes that fail are in
    `reached.failures`. Raises Interrupted when `until` returns True."""
    return _runs_in(ask(reached, {RUNS: None}, until=until), reached)


def _runs_in(answers: Mapping[str, Answers], reached: ReachedNodes) -> dict[str, RunStatus]:
    named = _NamedNodes(reached.sessions.keys() | reached.failures.keys())
    reported: dict[str, dict[str, RunOnNode]] = {}
    for host, answer in answers.items():
        for one in _runs_of(host, answer, reached, named):
            reported.setdefault(one.run, {})[host] = one
    return {run: _joined(by_host, reached, named) for run, by_host in sorted(reported.items())}


class _NamedNodes:
    """The nodes that runs name. Each text is expanded once: most nodes of a run have the same."""

    def __init__(self, known: Iterable[str]) -> None:
        """`known`: the nodes of the clusters. Names of others are counted, and not kept."""
        self._known = {name: name for name in known}
        self._found: dict[str | tuple[str, ...], tuple[int, tuple[str, ...]]] = {}

    def count(self, hosts: str | tuple[str, ...]) -> int:
        """Return how many names that is."""
        return self._expanded(hosts)[0]

    def known(self, hosts: str | tuple[str, ...]) -> tuple[str, ...]:
        """Return those that are known; none if they are named in an invalid way."""
        return self._expanded(hosts)[1]

    def _expanded(self, hosts: str | tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
        if hosts not in self._found:
            try:
                names = expand(hosts) if isinstance(hosts, str) else hosts
                known = tuple(self._known[name] for name in names if name in self._known)
                self._found[hosts] = len(names), known
            except InvalidNodeSet:
                self._found[hosts] = LIMIT, ()  # that may have taken as long
        return self._found[hosts]


def _runs_of(
    host: str, answer: Answers, reached: ReachedNodes, named: _NamedNodes
) -> Iterator[RunOnNode]:
    """Yield the runs of one node, the newest first. A record that is invalid is noted as a failure
    of the node, and so is that its runs name too many nodes: the oldest are left out then."""
    recorded = answer.get(RUNS)
    if recorded is None:
        return
    for error in recorded.invalid:
        why = f"its record of a run is invalid: {error}"
        reached.failures[host] = NodeFailure(host, "protocol", why)
    left = MOST_NAMED
    for run in sorted(recorded.runs, key=lambda run: run.started, reverse=True):
        left -= named.count(run.hosts)
        if left < 0:
            why = f"its records of runs name more than {MOST_NAMED:,} nodes"
            reached.failures[host] = NodeFailure(host, "protocol", why, hint=TOO_MANY_RUNS)
            return
        yield run


def _joined(
    reported: Mapping[str, RunOnNode], reached: ReachedNodes, named: _NamedNodes
) -> RunStatus:
    """Return one run as its nodes report it; nodes that did not answer are included."""
    first = next(iter(reported.values()))
    nodes = {host: _on_node(host, reported, reached) for host in _hosts(reported, named)}
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
    ended = last_end(nodes.values()) if state in ENDED else None
    return RunStatus(first.run, state, record, nodes, result=result, ended=ended)


def _hosts(reported: Mapping[str, RunOnNode], named: _NamedNodes) -> tuple[str, ...]:
    """Return the nodes of a run: those that any node names, and all that report it. One node
    cannot exclude others."""
    hosts: dict[str, None] = {}
    for told in {one.hosts: None for one in reported.values()}:  # the same on most nodes
        hosts |= dict.fromkeys(named.known(told))
    return tuple(hosts | dict.fromkeys(reported))


def _on_node(host: str, reported: Mapping[str, RunOnNode], reached: ReachedNodes) -> NodeStatus:
    told = reported.get(host)
    if told is None and host in reached.failures:
        return NodeStatus("unreachable", why=reached.failures[host].message)
    if told is None:
        return NodeStatus("nothing")
    offset = reached.sessions[host].offset
    events = tuple(read_event(host, event, offset) for event in told.events)
    over = any(event.kind == "ended" for event in events)
    state: NodeState = "running" if told.living and not over else "ended"
    if not told.living and told.left:
        state = "orphaned"
    return NodeStatus(state, told.ranks, events, told.left)


def _state(nodes: Iterable[NodeStatus], outcome: Outcome) -> State:
    """Return the state of a run that at least one node reports."""
    states = {node.state for node in nodes}
    if "orphaned" in states:
        return State.ORPHANED
    if "running" in states:
        return State.RUNNING if states == {"running"} else State.PARTLY_RUNNING
    return state_after(outcome)
