"""The handle of a run over SSH."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.cluster.model import Cluster, Node
from dslaunch.errors import DslaunchError, NodeError, NodeFailure
from dslaunch.run.collectives import Question, gather_collectives, with_collectives
from dslaunch.run.events import Event
from dslaunch.run.follow import Follower, nothing_reached, read_kept
from dslaunch.run.handle import (
    Attached,
    Notify,
    RankStacks,
    RunHandle,
    Sources,
    Stopped,
    this_user,
)
from dslaunch.run.interrupts import Until, never
from dslaunch.run.journal_tail import FIRST_WINDOW, read_tail, show_last_lines
from dslaunch.run.kept_hang import with_hang_verdict
from dslaunch.run.kept_progress import RunsOfCluster
from dslaunch.run.local_runs import LocalRun, note_outcome, recorded_outcome
from dslaunch.run.log_selection import EVERY_LINE, LogSelection, SelectedLines
from dslaunch.run.outcome import Outcome
from dslaunch.run.progress import Progress
from dslaunch.run.rank_signals import Signaled, order, send_signal
from dslaunch.run.rank_stacks import gather_stacks
from dslaunch.run.reach import ReachedNodes, ask_each, reach
from dslaunch.run.reasons import EndCode
from dslaunch.run.recorded_events import read_last_attempt
from dslaunch.run.recorded_output import RecordedOutput
from dslaunch.run.recorded_progress import note_progress, noted_progress, recorded_progress
from dslaunch.run.rehearsal_result import recorded_verdict
from dslaunch.run.replay import attach_record, replay
from dslaunch.run.restart import end_all
from dslaunch.run.run_directory import LOGS, is_held
from dslaunch.run.run_record import RunRecord
from dslaunch.run.run_state import ENDED, State, state_after
from dslaunch.run.session import Session
from dslaunch.run.status import (
    Reports,
    RunStatus,
    Unknown,
    history_of,
    node_runs,
    recorded_nodes,
    slower_ranks,
    with_progress,
)
from dslaunch.run.usage_monitor import UsageSource
from dslaunch.run.view import QuietView, View
from dslaunch.run.watch import Watch

GRACE = 10.0
"""Seconds between asking a rank to end and killing it, where none are given."""


@dataclass(frozen=True, slots=True)
class SshRun(RunHandle):
    """A run over SSH, and the nodes to ask about it."""

    run: str
    """Its name."""
    agents: str
    """The name of the agents of its latest attempt."""
    nodes: tuple[str, ...]
    """The names of its nodes, as they were selected."""
    local: LocalRun | None = None
    found_on: Cluster | None = None
    """Where it was found, if this machine has no record of it."""
    world_size: int | None = None
    """How many ranks its nodes report; None: unknown."""

    @classmethod
    def recorded(cls, local: LocalRun) -> SshRun:
        """Return the run of a record of this machine."""
        return cls(local.run, local.record.agents, local.record.hosts, local)

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.run

    @property
    def hosts(self) -> tuple[str, ...]:
        """Its nodes, as they were selected."""
        return self.nodes

    @property
    def record(self) -> RunRecord | None:
        """This machine's record."""
        return None if self.local is None else self.local.record

    @property
    def cluster(self) -> Cluster:
        """Return its cluster. Raises UsageError if that is not known any more."""
        if self.local is not None:
            return self.local.cluster()
        assert self.found_on is not None
        return self.found_on

    def cluster_to_ask(self) -> Cluster | None:
        """Return the cluster, unless the launcher has recorded everything."""
        if self.local is None or self.local.living:
            return self.cluster
        recorded = self.local.result is not None or not self.local.record.detached
        return None if recorded else self.cluster

    def summary(self, reports: Reports) -> RunStatus:
        """Return the state that the nodes report, else the recorded one."""
        reported = reports.runs.get(self.agents)
        if self.local is None:
            assert reported is not None
            return replace(reported, run=self.name)
        unknown = self._why_unknown(self.local, reports)
        if reported is not None:
            if unknown is None and reported.state is not State.FAILED:
                _note_end(self.local, reported)
            return replace(
                reported,
                run=self.name,
                record=self.local.record,
                result=self.local.result or reported.result,
                unknown=unknown if reported.state in ENDED else None,
                directory=str(self.local.directory),
            )
        return RunStatus(
            run=self.name,
            state=State.ACTIVE if self.local.living else state_after(self.local.result),
            record=self.local.record,
            result=self.local.result,
            unknown=unknown,
            output=(str(self.local.directory / LOGS),),
            directory=str(self.local.directory),
            ended=self.local.ended,
            rehearsal=recorded_verdict(self.local.directory),
        )

    def _why_unknown(self, local: LocalRun, reports: Reports) -> Unknown | None:
        """Return why missing reports of its nodes mean nothing; None: they do."""
        if local.living or local.result is not None or not local.record.detached:
            return None
        if self.name in reports.unasked:
            return Unknown("no-cluster")
        unresponsive = tuple(host for host in self.hosts if host in reports.failures)
        return Unknown("no-answer", unresponsive) if unresponsive else None

    def status(self) -> RunStatus:
        """Ask its nodes, unless the launcher has recorded everything. Raises DslaunchError."""
        local = self.local
        if local is not None and local.result is not None and not local.record.detached:
            return self._recorded_status(local)
        return self._asked_status()

    def _recorded_status(self, local: LocalRun) -> RunStatus:
        events = read_last_attempt(local.directory)
        return replace(
            self.summary(Reports()),
            nodes=recorded_nodes(local.record, events),
            progress=self.progress(),
            slower=slower_ranks(events),
        )

    def _asked_status(self) -> RunStatus:
        """Return the state that its nodes report now. Raises DslaunchError."""
        local, cluster = self.local, self.cluster
        with reach(cluster, _nodes(cluster, self.hosts)) as reached:
            runs = node_runs(reached)
            asked = RunsOfCluster(runs, reached, cluster.progress)
            runs |= with_progress([asked], lambda run: run.run == self.agents)
            found = runs.get(self.agents)
            if found is not None and found.state is State.FAILED:
                explained = _explained(found, reached)
                runs[self.agents] = explained
                if local is not None and not reached.failures:
                    _note_end(local, explained)
            reports = Reports(runs, dict(reached.failures))
        if local is None and self.agents not in runs:
            raise DslaunchError(f"run {self.name}: unknown to all nodes")
        events = read_last_attempt(local.directory) if local is not None else []
        summary = self.summary(reports)
        progress = summary.progress or self.progress()
        return replace(summary, progress=progress, slower=slower_ranks(events))

    def progress(self) -> Progress | None:
        """Return the progress by the record of this machine; of a detached run, the one that was
        noted at its end."""
        if self.local is None:
            return None
        if self.local.record.detached:
            return noted_progress(self.local.directory)
        return recorded_progress(self.local.directory, self.local.record.progress_patterns)

    def sources(self) -> Sources:
        """Return its nodes and ranks, with those of earlier attempts."""
        hosts = set(self.hosts)
        if self.local is None:
            return Sources(frozenset(hosts), self.world_size)
        ranks = self.local.record.world_size
        if self.local.record.attempt:
            with RecordedOutput(self.local.directory) as recorded:
                earlier = recorded.sources()
            hosts |= {host for host, _ in earlier}
            ranks = max([ranks, *(rank + 1 for _, rank in earlier if rank is not None)])
        return Sources(frozenset(hosts), ranks)

    def show_logs(
        self,
        view: View,
        tell: Notify,
        selection: LogSelection = EVERY_LINE,
        *,
        follow: bool,
        until: Until = never,
    ) -> None:
        """Show the output recorded on this machine; of a detached run, that kept by its nodes."""
        if self.local is not None and not self.local.record.detached:
            replay(self.local.directory, view, selection, follow=follow, until=until)
            return
        chosen = SelectedLines(view, selection)
        with self._joined(until, selection.hosts) as joined:
            for failure in joined.missing:
                tell(f"no answer from {failure.host}: {failure.message}")
            ask_each([joined.reached, joined.ended], until=until)
            watch = self._kept(joined, chosen, tell, until)
            follower = Follower(joined.reached, watch, list(watch.history.events))
            if follow:
                chosen.release()
                follower.follow(until=until)
            elif selection.tail is None:
                follower.catch_up(until=until)
        watch.flush_all()
        chosen.release()

    def _kept(self, joined: _Joined, chosen: SelectedLines, tell: Notify, until: Until) -> Watch:
        """Show what its nodes have kept, with `tail` only the last lines; return the watch to
        continue with."""

        def note_failure(failure: NodeFailure) -> None:
            tell(f"output of {failure.host} is incomplete: {failure.message}")

        if chosen.selection.tail is not None:
            return show_last_lines(joined.sessions, self.agents, chosen, until, note_failure)
        watch = Watch(chosen)
        read_kept(joined.sessions, self.agents, watch, until=until, note_failure=note_failure)
        return watch

    @contextlib.contextmanager
    def _joined(self, until: Until, hosts: frozenset[str] | None = None) -> Iterator[_Joined]:
        """Connect to the agents of its latest attempt, and to the nodes where they have exited."""
        with contextlib.ExitStack() as stack:
            reached = stack.enter_context(self._reached(self.cluster, until, hosts))
            gone = tuple(host for host, why in reached.failures.items() if why.kind == "no-agent")
            ended = ReachedNodes()
            if gone:
                nodes = _nodes(self.cluster, gone)
                ended = stack.enter_context(reach(self.cluster, nodes, until=until))
            yield _Joined(reached, ended)

    def attach(
        self,
        view: View,
        tell: Notify,
        selection: LogSelection = EVERY_LINE,
        *,
        until: Until = never,
    ) -> Attached:
        """Follow it until it ends; of an ended run return the outcome. Raises DslaunchError."""
        local = self.local
        if local is not None and local.result is not None:
            return Attached(local.result, before=True)
        if local is not None and local.living and not local.record.detached:
            # its launcher records all that arrives, also of later attempts
            attach_record(local.directory, view, selection, until=until)
            outcome = recorded_outcome(local.directory)
            if outcome is not None or is_held(local.directory):
                return Attached(outcome, directory=local.directory)
        return self._attach_nodes(SelectedLines(view, selection), tell, until)

    def _attach_nodes(self, chosen: SelectedLines, tell: Notify, until: Until) -> Attached:
        with self._joined(until) as joined:
            if not joined.reached.sessions:
                return self._over(joined)
            for failure in joined.missing:
                tell(f"no answer from {failure.host}: {failure.message}")
            ask_each([joined.reached, joined.ended], until=until)  # measures the clocks
            if chosen.selection.tail is None:
                _connected(joined, chosen, self.record)
                watch = self._kept(joined, chosen, tell, until)
                past = list(watch.history.events)
            else:
                watch = self._kept(joined, chosen, tell, until)
                past = self._events(joined, until)
                _connected(joined, chosen, self.record)
                for event in past:
                    watch.happened(event)
            chosen.release()
            follower = Follower(joined.reached, watch, past)
            outcome = follower.follow(until=until)
            if follower.open:
                return Attached(None)
        if outcome.reason.code is EndCode.HANG:
            outcome = self._with_hang_verdict(outcome, until)
        return Attached(outcome)

    def _with_hang_verdict(self, outcome: Outcome, until: Until) -> Outcome:
        """Ask the nodes again, whose agents have exited, what their ranks did."""
        cluster = self.cluster
        with reach(cluster, _nodes(cluster, self.hosts), until=until) as reached:
            reported = node_runs(reached, until=until).get(self.agents)
            if reported is None:
                return outcome
            return _hang_explained(outcome, reported, reached)

    def _events(self, joined: _Joined, until: Until) -> list[Event]:
        """Return the events so far, as its nodes report them, by time."""
        reports = [node_runs(each, until=until) for each in (joined.reached, joined.ended)]
        found = [
            event
            for runs in reports
            if self.agents in runs
            for node in runs[self.agents].nodes.values()
            for event in node.events
        ]
        return sorted(found, key=lambda event: event.time)

    def _reached(
        self, cluster: Cluster, until: Until = never, hosts: frozenset[str] | None = None
    ) -> AbstractContextManager[ReachedNodes]:
        """Connect to the agents of its latest attempt, on all nodes or on these."""
        chosen = tuple(host for host in self.hosts if hosts is None or host in hosts)
        return reach(cluster, _nodes(cluster, chosen), self.agents, until=until)

    def _over(self, joined: _Joined) -> Attached:
        """Return how a run without agents has ended. Raises DslaunchError if that is unknown."""
        reported = node_runs(joined.ended).get(self.agents)
        if reported is None or reported.result is None:
            raise nothing_reached(joined.reached, self.name)
        return Attached(reported.result, before=True)

    def stop(self, grace: float | None = None, caller: str | None = None) -> Stopped:
        """Stop it on all reachable nodes. Raises DslaunchError if there is none."""
        with self._reached(self.cluster) as reached:
            if not reached.sessions:
                raise nothing_reached(reached, self.name)
            seconds = GRACE if grace is None else grace
            stayed = end_all(reached, seconds, caller or this_user())
            ended = tuple(host for host in reached.sessions if host not in stayed)
            return Stopped(None, ended, tuple(stayed), _unreachable(reached))

    def signal(
        self, name: str, *, ranks: Collection[int] | None = None, force: bool = False
    ) -> Signaled:
        """Ask the agents to send a signal. Raises UsageError, DslaunchError as `RunHandle`."""
        what = order(name, ranks, force=force)
        with self._reached(self.cluster) as reached:
            if not reached.sessions:
                raise nothing_reached(reached, self.name)
            signaled = send_signal(list(reached.sessions.values()), what)
            return replace(signaled, failures=_unreachable(reached))

    def stacks(self, timeout: float = 15.0) -> RankStacks:
        """Ask the agents for stacks. Raises DslaunchError if none is reachable."""
        with self._reached(self.cluster) as reached:
            if not reached.sessions:
                raise nothing_reached(reached, self.name)
            sessions = list(reached.sessions.values())
            # before the stacks: a process that writes its stack answers nothing else
            records = gather_collectives(sessions, Question.FULL, timeout / 3)
            told = gather_stacks(sessions, timeout)
            return RankStacks(
                stacks=with_collectives(told, records),
                unresponsive=tuple(host for host in reached.sessions if host not in told),
                failures=_unreachable(reached),
            )

    @contextmanager
    def usage_source(self, hosts: Collection[str] = ()) -> Iterator[UsageSource]:
        """Connect to the agents of its latest attempt. Raises DslaunchError if none is
        reachable."""
        cluster = self.cluster
        chosen = tuple(host for host in self.hosts if host in hosts) if hosts else self.hosts
        with reach(cluster, _nodes(cluster, chosen), self.agents) as reached:
            if not reached.sessions:
                raise nothing_reached(reached, self.name)
            yield UsageSource(reached, self.cluster.progress)


class _Joined(Struct, frozen=True):
    """The nodes of a run, connected."""

    reached: ReachedNodes
    """Those with an agent of the run."""
    ended: ReachedNodes
    """Those where it has exited."""

    @property
    def sessions(self) -> list[Session]:
        """Return the sessions with all nodes that answered."""
        return [*self.reached.sessions.values(), *self.ended.sessions.values()]

    @property
    def missing(self) -> tuple[NodeFailure, ...]:
        """Return the failures of nodes that may still run processes."""
        return _unreachable(self.reached)


def _connected(joined: _Joined, chosen: SelectedLines, record: RunRecord | None) -> None:
    """Show that the nodes were connected: only the launcher that started the run noted when."""
    started = time.time() if record is None else record.started
    for session in joined.sessions:
        chosen.event(Event(started, "connected", session.host))


def _note_end(local: LocalRun, reported: RunStatus) -> None:
    """Record the end of a detached run that all its nodes report, and that no launcher saw. Of a
    failed one, the last output must have been read."""
    states = {node.state for node in reported.nodes.values()}
    over = reported.state in ENDED and states == {"ended"} and reported.result is not None
    if over and local.record.detached and not local.living and reported.result is not None:
        if reported.progress is not None:
            note_progress(local.directory, reported.progress)
        note_outcome(local.directory, reported.result, reported.ended)


def _explained(found: RunStatus, reached: ReachedNodes) -> RunStatus:
    """Return the status of a failed detached run with what its ranks have written last."""
    watch = Watch(QuietView())
    for session in reached.sessions.values():
        try:
            tail = read_tail(session, found.run, FIRST_WINDOW, never)
        except NodeError as error:
            reached.failures[session.host] = error.failures[0]
            continue
        for output in tail.output:
            watch.output(session.host, output, session.offset)
    watch.flush_all()
    watch.history = history_of(e for node in found.nodes.values() for e in node.events)
    return replace(found, result=_hang_explained(watch.outcome(), found, reached))


def _hang_explained(outcome: Outcome, found: RunStatus, reached: ReachedNodes) -> Outcome:
    """Return the outcome of a detached run with the verdict, if it was a hang."""
    return with_hang_verdict(
        outcome,
        found.run,
        reached,
        ranks={host: node.ranks for host, node in found.nodes.items()},
        events=[event for node in found.nodes.values() for event in node.events],
    )


def _unreachable(reached: ReachedNodes) -> tuple[NodeFailure, ...]:
    """Return the failures of nodes that may still run processes; those without an agent do not."""
    return tuple(why for why in reached.failures.values() if why.kind != "no-agent")


def _nodes(cluster: Cluster, hosts: tuple[str, ...]) -> tuple[Node, ...]:
    by_host = {node.host: node for node in cluster.nodes}
    return tuple(by_host[host] for host in hosts if host in by_host)
