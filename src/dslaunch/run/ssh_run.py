"""A run over SSH: its agents are reached by their names on the nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dslaunch.cluster.model import Cluster, Node
from dslaunch.errors import DslaunchError, NodeFailure
from dslaunch.run.follow import Follower, nothing_reached, read_kept, replay
from dslaunch.run.handle import Attached, Gathered, Stopped, Tell
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.local import LocalRun
from dslaunch.run.reach import ReachedNodes, ask, reach
from dslaunch.run.restart import end_all
from dslaunch.run.run_record import RunRecord
from dslaunch.run.run_state import ENDED, State, state_after
from dslaunch.run.status import Reports, RunStatus, Unknown, node_runs
from dslaunch.run.supervisor import gather_stacks
from dslaunch.run.watch import View, Watch

GRACE = 10.0
"""Seconds between asking a rank to end and killing it, where none are given."""


@dataclass(frozen=True, slots=True)
class SshRun:
    """A run, and whom to ask about it."""

    name: str
    agents: str
    """The name that the agents of its latest attempt carry."""
    hosts: tuple[str, ...]
    local: LocalRun | None = None
    found_on: Cluster | None = None
    """Where it was found, if this machine has no record of it."""

    @classmethod
    def recorded(cls, local: LocalRun) -> SshRun:
        """Return the run of a record of this machine."""
        return cls(local.run, local.record.agents, local.record.hosts, local)

    @property
    def record(self) -> RunRecord | None:
        """This machine's record."""
        return None if self.local is None else self.local.record

    @property
    def cluster(self) -> Cluster:
        """The cluster that it runs on. Raises UsageError where that is not known any more."""
        if self.local is not None:
            return self.local.cluster()
        assert self.found_on is not None
        return self.found_on

    def cluster_to_ask(self) -> Cluster | None:
        """Return the cluster, unless the launcher has recorded all that there is to know."""
        if self.local is None or self.local.living or self.local.record.detached:
            return self.cluster
        return None

    def summary(self, reports: Reports) -> RunStatus:
        """Return what the nodes report, else what this machine has recorded."""
        reported = reports.runs.get(self.agents)
        if self.local is None:
            assert reported is not None
            return replace(reported, run=self.name)
        unknown = self._why_unknown(self.local, reports)
        if reported is not None:
            return replace(
                reported,
                run=self.name,
                record=self.local.record,
                result=self.local.result or reported.result,
                unknown=unknown if reported.state in ENDED else None,
            )
        return RunStatus(
            run=self.name,
            state=State.ACTIVE if self.local.living else state_after(self.local.result),
            record=self.local.record,
            result=self.local.result,
            unknown=unknown,
            output=(str(self.local.directory / "logs"),),
        )

    def _why_unknown(self, local: LocalRun, reports: Reports) -> Unknown | None:
        """Why the silence of its nodes says nothing; None: whoever may know it was heard."""
        if local.living or local.result is not None or not local.record.detached:
            return None
        if self.name in reports.unasked:
            return Unknown("no-cluster")
        unresponsive = tuple(host for host in self.hosts if host in reports.failures)
        return Unknown("no-answer", unresponsive) if unresponsive else None

    def status(self) -> RunStatus:
        """Ask its nodes. Raises DslaunchError."""
        cluster = self.cluster
        with reach(cluster, _nodes(cluster, self.hosts)) as reached:
            runs = node_runs(reached)
            reports = Reports(runs, dict(reached.failures))
        if self.local is None and self.agents not in runs:
            raise DslaunchError(f"no node says anything of run {self.name}")
        return self.summary(reports)

    def logs(self, view: View, tell: Tell, *, follow: bool) -> None:
        """Show what this machine has recorded; of a detached run what its nodes have kept."""
        watch = Watch(view)
        if self.local is not None and not self.local.record.detached:
            replay(self.local.directory, watch, follow=follow)
            return
        for failure in self._from_nodes(watch, follow=follow):
            tell(f"no answer from {failure.host}: {failure.message}")

    def _from_nodes(self, watch: Watch, *, follow: bool) -> tuple[NodeFailure, ...]:
        """Show what the nodes have kept, and with `follow` what comes; give those that fail."""
        cluster = self.cluster
        nodes = _nodes(cluster, self.hosts)
        with Interrupts() as interrupts, reach(cluster, nodes, self.agents) as reached:

            def enough() -> bool:
                return interrupts.count > 0

            missing = _unreachable(reached)
            gone = tuple(host for host, why in reached.failures.items() if why.kind == "no-agent")
            ask(reached)  # measures the clocks
            if gone:
                with reach(cluster, _nodes(cluster, gone)) as ended:
                    ask(ended)
                    read_kept(ended, self.agents, watch, until=enough)
            follower = Follower(reached, watch)
            if follow:
                follower.follow(until=enough)
            else:
                follower.catch_up(until=enough)
        watch.flush_all()
        return missing

    def attach(self, view: View, tell: Tell) -> Attached:
        """Follow it to its end; of a run that is over give how it ended. Raises DslaunchError."""
        cluster = self.cluster
        nodes = _nodes(cluster, self.hosts)
        with Interrupts() as interrupts, reach(cluster, nodes, self.agents) as reached:
            if not reached.sessions:
                return self._over(reached)
            ask(reached)  # measures the clocks
            follower = Follower(reached, Watch(view))
            outcome = follower.follow(until=lambda: interrupts.count > 0)
            return Attached(None if follower.open else outcome)

    def _over(self, reached: ReachedNodes) -> Attached:
        """How a run of which no agent is there has ended. Raises DslaunchError: nobody knows."""
        cluster = self.cluster
        with reach(cluster, _nodes(cluster, self.hosts)) as asked:
            reported = node_runs(asked).get(self.agents)
        outcome = None if self.local is None else self.local.result
        if reported is not None:
            outcome = reported.result or outcome
        if outcome is None:
            raise nothing_reached(reached, self.name)
        return Attached(outcome, before=True)

    def stop(self, grace: float | None, caller: str) -> Stopped:
        """End it on all nodes that can be reached. Raises DslaunchError: none can be."""
        cluster = self.cluster
        with reach(cluster, _nodes(cluster, self.hosts), self.agents) as reached:
            if not reached.sessions:
                raise nothing_reached(reached, self.name)
            stayed = end_all(reached, GRACE if grace is None else grace, caller)
            ended = tuple(host for host in reached.sessions if host not in stayed)
            return Stopped(None, ended, tuple(stayed), _unreachable(reached))

    def stacks(self, timeout: float) -> Gathered:
        """Ask the agents. Raises DslaunchError: none can be reached."""
        cluster = self.cluster
        with reach(cluster, _nodes(cluster, self.hosts), self.agents) as reached:
            if not reached.sessions:
                raise nothing_reached(reached, self.name)
            told = gather_stacks(list(reached.sessions.values()), timeout)
            unresponsive = tuple(host for host in reached.sessions if host not in told)
            return Gathered(told, unresponsive, _unreachable(reached))


def _unreachable(reached: ReachedNodes) -> tuple[NodeFailure, ...]:
    """Nodes that may still run something; those without an agent do not."""
    return tuple(why for why in reached.failures.values() if why.kind != "no-agent")


def _nodes(cluster: Cluster, hosts: tuple[str, ...]) -> tuple[Node, ...]:
    by_host = {node.host: node for node in cluster.nodes}
    return tuple(by_host[host] for host in hosts if host in by_host)
