"""The main flow: connect, ask, decide, ship, plan, run, record; again, if nodes are lost."""

from __future__ import annotations

import contextlib
import json
import os
import secrets as randomness
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Protocol

from dslaunch import log, transport
from dslaunch.cluster.model import Allocation, Cluster
from dslaunch.errors import DslaunchError, UsageError
from dslaunch.launch.job import Job
from dslaunch.registry import LAUNCHERS
from dslaunch.run.agent_starter import PING, AgentStarter
from dslaunch.run.boot import Agent
from dslaunch.run.events import Event
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.reasons import Restart
from dslaunch.run.request import RunRequest, agent_run
from dslaunch.run.run_directory import CLUSTER, SUBMISSION, RunDirectory, runs_directory
from dslaunch.run.run_record import FILE, RunRecord
from dslaunch.run.secret import Secret, read_secrets
from dslaunch.run.session import INBOX_SIZE, Inbox, Session

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node
    from dslaunch.launch.plan import Plan
    from dslaunch.run.events import Line
    from dslaunch.run.outcome import Outcome
    from dslaunch.transport.base import Connection
    from dslaunch.transport.ssh.choice import Choice


class RunView(Protocol):
    """Where a person, or a program, sees a run from its plan to its end."""

    def line(self, line: Line) -> None:
        """A line of output."""

    def event(self, event: Event) -> None:
        """Something happened."""

    @property
    def unseen(self) -> bool:
        """Whether it shows no more lines."""

    def plan(self, plan: Plan, directory: Path) -> None:
        """What was decided, and where the run is recorded; nothing has started yet."""


def run_job(
    request: RunRequest, show: Callable[[], RunView], stop: Interrupts | None = None
) -> tuple[Outcome, Path]:
    """Run a job on its nodes to the end; give how it ended and the run directory.

    `show` gives the view, the same every time, and is first called while the nodes are on their
    way. A detached run is only started. `stop` is asked whether to end it, and no signal is caught,
    as Python demands of threads; None: signals of this process end it.
    Raises a DslaunchError for whatever prevents the first start; then nothing was started anywhere.
    """
    again = request.detached and request.restarts
    if again and not LAUNCHERS.get(request.job.launcher).elastic:
        raise UsageError(
            "--detach and --restarts exclude each other: nobody is there to start it again",
            hint="run it without --detach in tmux or the like",
        )
    secrets = read_secrets(request.job.secrets, request.environ)
    log.conceal(secret.reveal() for secret in secrets.values())
    # an impossible request is refused before any node is spoken to
    LAUNCHERS.require(request.job.launcher)
    runs_directory(request.environ)
    caught = Interrupts(request.notice) if stop is None else contextlib.nullcontext(stop)
    with caught as interrupts:
        controller = RunController(request, show, interrupts, secrets)
        try:
            outcome = controller.attempt(request.allocation, 0)
        except DslaunchError:
            if controller.record is not None:
                controller.record.let_go()
            raise
        # an elastic launcher starts again by itself
        for count in range(1, 1 if controller.elastic else request.restarts + 1):
            if outcome.status != "failed" or interrupts.count or interrupts.notices:
                break
            outcome = controller.again(outcome, count)
        return controller.finish(outcome)


class RunController:
    """One run with all its attempts."""

    def __init__(
        self,
        request: RunRequest,
        show: Callable[[], RunView],
        interrupts: Interrupts,
        secrets: dict[str, Secret],
    ) -> None:
        self.request, self.interrupts = request, interrupts
        self.secrets = secrets
        self.run = new_run_id(request.job)
        self.record: RunDirectory | None = None
        self.allocation = request.allocation
        self.transport: Choice | None = None
        """How the nodes of this attempt are reached."""
        self.outcomes: list[Outcome] = []
        """How the attempts before ended."""
        self._show = show

    @property
    def elastic(self) -> bool:
        """Whether the launcher restarts ranks by itself, and goes on without nodes that leave."""
        return LAUNCHERS.get(self.request.job.launcher).elastic

    @property
    def view(self) -> RunView:
        """Where it is shown."""
        return self._show()

    def attempt(self, allocation: Allocation, count: int) -> Outcome:
        """Start the job on these nodes and stay to the end. Raises DslaunchError before that."""
        self.allocation = allocation
        cluster = self.request.cluster
        inbox: Inbox = Queue(INBOX_SIZE)
        self.transport = transport.choose(cluster.transport, cluster)
        opened = transport.make(self.transport.name, cluster)

        def session(node: Node, connection: Connection) -> Session:
            timeouts = self.request.timeouts
            run = agent_run(self.run, count)
            agent = Agent(run, node.host, timeouts.heartbeat, timeouts.reconnect)
            return Session(node, connection, agent, inbox, opened)

        nodes = [placement.node for placement in allocation.placements]
        with contextlib.closing(opened):
            ping = min(PING, self.request.timeouts.heartbeat / 3)
            starter = AgentStarter(opened, nodes, cluster.ssh.fanout, session, ping)
            with contextlib.closing(starter):
                starter.head_start(self.interrupts)
                # while the agents start: it imports as much as all before it
                from dslaunch.run.start import start

                return start(self, count, starter, inbox)

    def again(self, outcome: Outcome, count: int) -> Outcome:
        """Start once more with what is left of the nodes and the spares."""
        assert self.record is not None
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
        """Write down how it ended."""
        assert self.record is not None
        from dslaunch.run.faulty import faulty_nodes

        if outcome.status == "failed":
            outcome = replace(outcome, faulty=faulty_nodes((*self.outcomes, outcome)))
        if self.request.detached:
            self.record.let_go()
        else:
            self.record.close(outcome.as_dict())
        return outcome, self.record.directory

    def recorded(self, plan: Plan, count: int) -> RunDirectory:
        """The run directory, made at the first plan."""
        if self.record is None:
            self.record = open_record(runs_directory(self.request.environ) / self.run)
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
        )
        self.record.write(FILE, about.to_json())
        return self.record


def cluster_json(cluster: Cluster) -> str:
    """The cluster, for those who look after the run later."""
    return json.dumps(asdict(cluster), indent=1) + "\n"


def open_record(directory: Path) -> RunDirectory:
    """Make the run directory. Raises UsageError where none can be made."""
    try:
        return RunDirectory(directory)
    except OSError as error:
        raise UsageError(
            f"the run directory {directory} cannot be made: {error.strerror}",
            hint="set $DSLAUNCH_STATE to a directory of yours",
        ) from None


def new_run_id(job: Job) -> str:
    """A name for a run that sorts by time and tells people what it was."""
    stem = Path(job.program).stem
    readable = "".join(c if c.isalnum() or c in "-_" else "-" for c in stem)[:24] or "run"
    return f"{time.strftime('%m%d-%H%M%S')}-{readable}-{randomness.token_hex(2)}"
