"""Run a job: connect, ask, decide, ship, plan, run, record; restart it if nodes are lost."""

from __future__ import annotations

import contextlib
import os
import secrets as randomness
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dslaunch import log, transport
from dslaunch.cluster.model import Allocation, Cluster
from dslaunch.errors import DslaunchError, UsageError
from dslaunch.launch.job import Job
from dslaunch.registry import LAUNCHERS, TRANSPORTS
from dslaunch.run.agent_starter import PING_INTERVAL, AgentStarter
from dslaunch.run.inbox import Inbox
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.open_files import allow_open_files
from dslaunch.run.request import RunRequest, agent_run, job_of_attempt
from dslaunch.run.run_directory import (
    CLUSTER,
    OPEN_LOGS,
    SUBMISSION,
    RunDirectory,
    runs_directory,
)
from dslaunch.run.secret import Secret, read_secrets
from dslaunch.run.view import ignore

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node
    from dslaunch.launch.plan import Plan
    from dslaunch.run.agent_program import AgentStart
    from dslaunch.run.outcome import Outcome
    from dslaunch.run.rehearsal import Rehearsed
    from dslaunch.run.session import Session
    from dslaunch.run.usage_recorder import OnUsage, UsageFile, UsageRecorder
    from dslaunch.run.view import RunView
    from dslaunch.transport.base import Connection, Detour, Transport
    from dslaunch.transport.logged import LoggedTransport
    from dslaunch.transport.ssh.choice import Choice


def run_job(
    request: RunRequest,
    show: Callable[[], RunView],
    stop: Interrupts | None = None,
    on_usage: OnUsage = ignore,
    on_rehearsed: Callable[[Rehearsed], object] = ignore,
) -> tuple[Outcome, Path]:
    """Run a job on its nodes to the end; return how it ended and the run directory.

    `show` returns the view, the same every time, and is first called while the nodes are being
    connected to. A detached run is only started. `stop` counts the requests to stop, and no signal
    is caught, as Python requires of threads; None: signals of this process stop the run.
    `on_usage` is called with the name of the run and each sample of what its nodes use,
    `on_rehearsed` at the end of a rehearsal.
    Raises a DslaunchError for whatever prevents the first start; then nothing was started anywhere.
    """
    secrets = _check(request)
    caught = Interrupts(request.notice) if stop is None else contextlib.nullcontext(stop)
    with caught as interrupts:
        controller = RunController(request, show, interrupts, secrets, on_usage)
        ended = controller.run_to_end()
        if controller.rehearsed is not None:
            on_rehearsed(controller.rehearsed)
        return ended


def _check(request: RunRequest) -> dict[str, Secret]:
    """Refuse an impossible request before any node is contacted; return the secrets.

    Raises UsageError, PluginError, ToolMissingError.
    """
    restarts = request.restarts and not LAUNCHERS.get(request.job.launcher).elastic
    if request.detached and restarts:
        raise UsageError(
            "--detach and --restarts exclude each other: a detached run has no controller to "
            "restart it",
            hint="run it without --detach in tmux or screen",
        )
    secrets = read_secrets(request.job.secrets, request.environ)
    log.conceal(secret.reveal() for secret in secrets.values())
    LAUNCHERS.require(request.job.launcher)
    runs_directory(request.environ)
    return secrets


class RunController:
    """Controls one run with all its attempts."""

    def __init__(
        self,
        request: RunRequest,
        show: Callable[[], RunView],
        interrupts: Interrupts,
        secrets: dict[str, Secret],
        on_usage: OnUsage = ignore,
    ) -> None:
        self.request, self.interrupts = request, interrupts
        self.secrets = secrets
        self.run = new_run_id(request.job)
        self.record: RunDirectory | None = None
        self.allocation = request.allocation
        self.transport: Choice | None = None
        """How the nodes of this attempt are reached."""
        self.detours: Callable[[], tuple[Detour, ...]] = tuple
        """Returns the nodes of this attempt that are not reached as intended."""
        self.rehearsed: Rehearsed | None = None
        """What a rehearsal has recorded, once it has ended."""
        self.outcomes: list[Outcome] = []
        """How the attempts before ended."""
        self.connected: dict[str, float] = {}
        """The nodes of this attempt that were connected before there was a record to note it, and
        when."""
        self._show = show
        self._on_usage = on_usage
        self._usage_file: UsageFile | None = None
        self._open_logs = OPEN_LOGS

    def run_to_end(self) -> tuple[Outcome, Path]:
        """Make the attempts of the run; return how it ended and the run directory.

        Raises DslaunchError for whatever prevents the first start.
        """
        try:
            outcome = self.attempt(self.request.allocation, 0)
        except DslaunchError:
            if self.record is not None:
                self.record.let_go()
            raise
        # an elastic launcher restarts its ranks by itself
        restarts = 0 if self.elastic else self.request.restarts
        for count in range(1, restarts + 1):
            if outcome.status != "failed" or self.interrupts.count or self.interrupts.notices:
                break
            outcome = self.again(outcome, count)
        return self.finish(outcome)

    @property
    def elastic(self) -> bool:
        """Return whether the launcher restarts ranks itself, and continues without lost nodes."""
        return LAUNCHERS.get(self.request.job.launcher).elastic

    @property
    def view(self) -> RunView:
        """Return the view."""
        return self._show()

    def attempt(self, allocation: Allocation, count: int) -> Outcome:
        """Start the job on these nodes and stay to its end.

        Raises DslaunchError for whatever prevents the start.
        """
        self.allocation = allocation
        inbox = Inbox()
        with (
            contextlib.closing(self._open_transport()) as opened,
            contextlib.closing(self._start_agents(opened, inbox, count)) as starter,
        ):
            # what takes long is done while the nodes are being connected to
            from dslaunch.run import agent_program

            if self.transport is not None:
                transport.import_client(self.transport.name)
            agent_program.prepare()
            import dslaunch.run.session  # noqa: F401 - made by the starter's threads
            from dslaunch.run.inquired import inquire

            job = job_of_attempt(self.request, count)
            inquired = inquire(self.request, allocation, job, starter.begun)
            # and the rest while the agents greet and answer
            from dslaunch.run.start import start

            return start(self, count, starter, inbox, inquired)

    def _open_transport(self) -> LoggedTransport:
        """Open the transport to the nodes of this attempt, and allow as many open files as it
        needs.

        Raises UsageError, PlanError and ToolMissingError, as `transport.choose` does.
        """
        cluster = self.request.cluster
        self.transport = transport.choose(cluster.transport, cluster)
        opened = transport.make(self.transport.name, cluster, self._nodes)
        self.detours = opened.detours
        connections = len(self._nodes)
        if self._is_through_nodes:
            connections = min(connections, cluster.ssh.tree_fanout)
        self._open_logs = allow_open_files(connections, self.allocation.world_size)
        return opened

    def _start_agents(self, opened: Transport, inbox: Inbox, count: int) -> AgentStarter:
        """Begin to start the agents of an attempt; what they send goes to the inbox."""
        timeouts = self.request.timeouts
        # nodes of a tree are also lost by the loss of another one
        waits = self._is_through_nodes and not self.request.detached

        def make_agent(node: Node) -> AgentStart:
            from dslaunch.run.agent_program import AgentStart

            return AgentStart(
                run=agent_run(self.run, count),
                host=node.host,
                heartbeat=timeouts.heartbeat,
                reconnect=timeouts.reconnect,
                waits=waits,
            )

        def make_session(node: Node, connection: Connection, agent: AgentStart) -> Session:
            from dslaunch.run.session import Session

            return Session(
                node=node, connection=connection, agent=agent, inbox=inbox, transport=opened
            )

        return AgentStarter(
            transport=opened,
            nodes=self._nodes,
            fanout=self.request.cluster.connected_at_once,
            make_agent=make_agent,
            make_session=make_session,
            ping_interval=min(PING_INTERVAL, timeouts.heartbeat / 3),
        )

    @property
    def _nodes(self) -> list[Node]:
        """The nodes of this attempt."""
        return [placement.node for placement in self.allocation.placements]

    @property
    def _is_through_nodes(self) -> bool:
        """Whether the nodes of this attempt are reached through each other."""
        return self.transport is not None and TRANSPORTS.get(self.transport.name).through_nodes

    def usage_recorder(self) -> UsageRecorder:
        """Return what records the usage of the nodes in one attempt; after the first plan."""
        from dslaunch.run.usage_recorder import UsageFile, UsageRecorder

        assert self.record is not None
        if self._usage_file is None:
            self._usage_file = UsageFile(self.record.directory)
        return UsageRecorder(
            self._usage_file,
            partial(self._on_usage, self.run),
            formats=self.request.cluster.progress,
        )

    def again(self, outcome: Outcome, count: int) -> Outcome:
        """Restart with the remaining nodes and spares; return how that ended."""
        assert self.record is not None
        from dslaunch.run.events import Event
        from dslaunch.run.reasons import Restart
        from dslaunch.run.restart import choose_again

        self.outcomes.append(outcome)
        try:
            allocation, replaced = choose_again(self, count)
            restart = Restart(count, self.request.restarts, outcome.reason, replaced)
            event = Event(time.time(), "restarting", restart=restart)
            self.record.event(event)
            self.view.event(event)
            return self.attempt(allocation, count)
        except DslaunchError as error:
            reason = replace(outcome.reason, not_restarted=error.message)
            return replace(outcome, reason=reason, hint=error.hint or outcome.hint)

    def finish(self, outcome: Outcome) -> tuple[Outcome, Path]:
        """Record how it ended; return that and the run directory."""
        assert self.record is not None
        from dslaunch.run.faulty import faulty_nodes

        if outcome.status == "failed":
            outcome = replace(outcome, faulty=faulty_nodes((*self.outcomes, outcome)))
        if self.request.detached and outcome.goes_on:
            self.record.let_go()
        else:
            self.record.close(outcome.as_data())
        return outcome, self.record.directory

    def recorded(self, plan: Plan, count: int) -> RunDirectory:
        """Return the run directory, made at the first plan."""
        from dslaunch.run.run_record import FILE, RunRecord

        if self.record is None:
            directory = runs_directory(self.request.environ) / self.run
            self.record = open_record(directory, self._open_logs)
            self.record.write(CLUSTER, cluster_json(self.request.cluster))
        about = RunRecord(
            program=self.request.job.program,
            cluster=plan.cluster,
            launcher=plan.launcher,
            hosts=tuple(node.host for node in plan.nodes),
            world_size=plan.world_size,
            detached=self.request.detached,
            attempt=count,
            agents=agent_run(self.run, count),
            started=time.time(),
            pid=os.getpid(),
            machine=socket.gethostname(),
            submission=self.request.environ.get(SUBMISSION, ""),
            progress_patterns=self.request.cluster.progress,
        )
        self.record.write(FILE, about.as_json())
        return self.record


def cluster_json(cluster: Cluster) -> str:
    """Return the cluster as JSON, for commands about the run later; not the text of its file."""
    from dslaunch.json_text import json_text, members

    return json_text(replace(cluster, source=None), indent=1, default=members) + "\n"


def open_record(directory: Path, open_logs: int = OPEN_LOGS) -> RunDirectory:
    """Create the run directory, with so many logs open at a time.

    Raises UsageError if that fails.
    """
    try:
        return RunDirectory(directory, open_logs)
    except OSError as error:
        raise UsageError(
            f"cannot create the run directory {directory}: {error.strerror}",
            hint="set $DSLAUNCH_STATE to a directory that you own",
        ) from None


def new_run_id(job: Job) -> str:
    """Return a name for a run: the time, the program, and a random part."""
    stem = Path(job.program).stem
    readable = "".join(c if c.isalnum() or c in "-_" else "-" for c in stem)[:24] or "run"
    return f"{time.strftime('%m%d-%H%M%S')}-{readable}-{randomness.token_hex(2)}"
