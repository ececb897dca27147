"""The main flow: connect, ask, decide, ship, plan, run, record; again, if nodes are lost."""

from __future__ import annotations

import contextlib
import json
import os
import secrets as randomness
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from queue import Queue
from typing import Protocol

from dslaunch import transport
from dslaunch.cluster.model import Allocation, Cluster, SecretSource
from dslaunch.errors import DslaunchError, NodeError, NodeFailure, UsageError
from dslaunch.launch import launchers
from dslaunch.launch.facts import facts_to_json
from dslaunch.launch.job import Job
from dslaunch.launch.plan import Plan, World, make_plan
from dslaunch.launch.serialise import to_json
from dslaunch.run.boot import Agent
from dslaunch.run.detach import detach
from dslaunch.run.events import Event
from dslaunch.run.evidence import ask_all, gather
from dslaunch.run.gate import Gate
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.outcome import Outcome
from dslaunch.run.prepare import decide, inquiry, ship
from dslaunch.run.reach import closing
from dslaunch.run.record import ABOUT, CLUSTER, Record, runs_directory
from dslaunch.run.restart import choose_again
from dslaunch.run.resume import Attempt, settling
from dslaunch.run.session import Inbox, Session
from dslaunch.run.supervisor import Patience, Supervisor
from dslaunch.run.watch import Screen, Watch
from dslaunch.transport.base import Connection
from dslaunch.transport.pool import connect_all

ELASTIC = "elastic"
"""The launcher whose ranks may fail, and nodes leave, without the run's end."""
INBOX_SIZE = 256
"""Pieces of output that may wait for the terminal before the nodes are made to wait."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for."""

    cluster: Cluster
    allocation: Allocation
    job: Job
    cwd: Path
    environ: Mapping[str, str]
    sync: bool = True
    patience: Patience = field(default_factory=Patience)
    detached: bool = False
    preflight: bool = True
    """Whether the quick checks are made before the start."""
    restarts: int = 0
    """How often a run that failed is started again."""
    min_nodes: int | None = None
    """With how few nodes; None: with as many as at first."""


class Announcer(Screen, Protocol):
    """A screen that is also told of the plan before anything starts."""

    def plan(self, plan: Plan, directory: Path) -> None:
        """What was decided, and where the run is recorded."""


def run_job(request: Request, screen: Announcer) -> tuple[Outcome, Path]:
    """Run a job on its nodes to the end; give how it ended and the run directory.

    A detached run is only started. Raises a DslaunchError for whatever prevents the first start;
    then nothing was started anywhere.
    """
    if request.detached and request.restarts:
        raise UsageError(
            "--detach and --restarts exclude each other: nobody is there to start it again",
            hint="run it without --detach in tmux or the like",
        )
    secrets = read_secrets(request.job.secrets, request.environ)
    # an impossible request is refused before any node is spoken to
    launchers.get(request.job.launcher)
    with Interrupts() as interrupts:
        whole = Whole(request, screen, interrupts, secrets)
        outcome = whole.attempt(request.allocation, 0)
        # an elastic launcher starts again by itself
        for count in range(1, 1 if whole.elastic else request.restarts + 1):
            if outcome.status != "failed" or interrupts.count:
                break
            outcome = whole.again(outcome, count)
        return whole.finish(outcome)


class Whole:
    """One run with all its attempts."""

    def __init__(
        self, request: Request, screen: Announcer, interrupts: Interrupts, secrets: dict[str, str]
    ) -> None:
        self.request, self.screen, self.interrupts = request, screen, interrupts
        self.secrets = secrets
        self.run = new_run_id(request.job)
        self.record: Record | None = None
        self.allocation = request.allocation
        self.elastic = request.job.launcher == ELASTIC

    def attempt(self, allocation: Allocation, count: int) -> Outcome:
        """Start the job on these nodes and stay to the end. Raises DslaunchError before that."""
        request, self.allocation = self.request, allocation
        self.nodes = [placement.node for placement in allocation.placements]
        self.way = transport.get(request.cluster.transport, request.cluster)
        job = counted(request, count)
        with contextlib.ExitStack() as stack:
            inbox: Inbox = Queue(INBOX_SIZE)
            opened = self.connect(stack)
            sessions = self.open_sessions(agent_run(self.run, count), opened, inbox, stack)
            question = inquiry(request.cluster, allocation, job, request.cwd)
            gate = Gate(question, job, opened) if request.preflight else None
            if count:
                question = replace(question, before=agent_run(self.run, count - 1))
            facts = gather(question, sessions, self.interrupts)
            decided, job, shipments = decide(question, facts, job, request.cwd, request.sync)
            kept = settling(
                *(question, request.job, sessions, facts, Attempt(self.run, count)),
                self.interrupts,
            )
            decided = kept.before(request.job, decided) if kept else decided
            decided = gate.passed(decided) if gate else decided
            world = World(allocation, decided.rendezvous, job.min_nodes)
            launchers.get(job.launcher).check(world)
            plan = make_plan(allocation, job, decided, cluster=request.cluster.name)
            record = self.recorded(plan, count)
            record.write(numbered("plan", count), to_json(plan))
            record.write(numbered("facts", count), facts_to_json(facts))
            self.screen.plan(plan, record.directory)
            ship(question.source, shipments, sessions, self.interrupts)
            self.interrupts.check()
            watch = Watch(self.screen, record)
            if self.elastic:
                watch.history.least = request.min_nodes or len(plan.nodes)
            if request.detached:
                return detach(sessions, inbox, watch, plan, self.secrets, request.patience)
            supervisor = Supervisor(sessions, inbox, watch, self.interrupts, request.patience)
            outcome = supervisor.run(plan, self.secrets)
            if kept is not None:
                kept.after()
            return outcome

    def again(self, outcome: Outcome, count: int) -> Outcome:
        """Start once more with what is left of the nodes and the spares."""
        assert self.record is not None
        try:
            allocation, words = choose_again(self, outcome, count)
            event = Event(time.time(), "restarting", text=f"{outcome.message}; {words}")
            self.record.event(event)
            self.screen.event(event)
            return self.attempt(allocation, count)
        except DslaunchError as error:
            why = f"{outcome.message}; not started again: {error.message}"
            return replace(outcome, message=why, hint=error.hint or outcome.hint)

    def finish(self, outcome: Outcome) -> tuple[Outcome, Path]:
        """Write down how it ended."""
        assert self.record is not None
        if self.request.detached:
            self.record.let_go()
        else:
            self.record.close(asdict(outcome))
        return outcome, self.record.directory

    def recorded(self, plan: Plan, count: int) -> Record:
        """The run directory, made at the first plan."""
        if self.record is None:
            self.record = open_record(runs_directory(self.request.environ) / self.run)
            self.record.write(CLUSTER, cluster_json(self.request.cluster))
        about = {
            "program": self.request.job.program,
            "cluster": plan.cluster,
            "launcher": plan.launcher,
            "hosts": [node.host for node in plan.nodes],
            "world_size": plan.world_size,
            "detached": self.request.detached,
            "attempt": count,
            "agents": agent_run(self.run, count),
            "started": time.time(),
            "pid": os.getpid(),
            "from": socket.gethostname(),
        }
        self.record.write(ABOUT, json.dumps(about) + "\n")
        return self.record

    def connect(self, stack: contextlib.ExitStack) -> dict[str, Connection]:
        """Connect to every node; all is closed when `stack` is.

        Raises NodeError naming every node that could not be used.
        """
        stack.callback(self.way.close)
        made = connect_all(self.way, self.nodes, self.request.cluster.ssh.fanout)
        opened = {host: c for host, c in made.items() if not isinstance(c, NodeFailure)}
        for connection in opened.values():
            stack.callback(connection.close)
        self.interrupts.check()
        failures = tuple(f for f in made.values() if isinstance(f, NodeFailure))
        if failures:
            raise NodeError(failures)
        return opened

    def open_sessions(
        self, run: str, opened: Mapping[str, Connection], inbox: Inbox, stack: contextlib.ExitStack
    ) -> list[Session]:
        """Start every node's agent; all are closed when `stack` is. Raises NodeError."""
        patience = self.request.patience
        sessions = []
        for node in self.nodes:
            agent = Agent(run, node.host, patience.silence, patience.reconnect)
            sessions.append(Session(node, opened[node.host], agent, inbox, self.way))
        stack.enter_context(closing(sessions))
        for session in sessions:
            session.begin()
        ask_all([session.hello for session in sessions], sessions, self.interrupts)
        for session in sessions:
            self.screen.event(Event(time.time(), "connected", session.host))
        return sessions


def agent_run(run: str, count: int) -> str:
    """The name that the agents of one attempt carry."""
    return f"{run}+{count}" if count else run


def counted(request: Request, count: int) -> Job:
    """The job, told how often it was started again, and how far it can help itself."""
    job = request.job
    return replace(
        job,
        overrides=(*job.overrides, ("DSLAUNCH_RESTART_COUNT", str(count))),
        restarts=request.restarts,
        min_nodes=request.min_nodes,
    )


def numbered(name: str, count: int) -> str:
    """The file of one attempt: `plan.json`, `plan-1.json`."""
    return f"{name}-{count}.json" if count else f"{name}.json"


def cluster_json(cluster: Cluster) -> str:
    """The cluster, for those who look after the run later."""
    return json.dumps(asdict(cluster), indent=1) + "\n"


def open_record(directory: Path) -> Record:
    """Make the run directory. Raises UsageError where none can be made."""
    try:
        return Record(directory)
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


def read_secrets(sources: tuple[SecretSource, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """Read the secrets' values. Raises UsageError naming every one that is not to be had."""
    values, missing = {}, []
    for source in sources:
        try:
            if source.file is None:
                values[source.name] = environ[source.name]
            else:
                text = Path(source.file).expanduser().read_text("utf-8")
                values[source.name] = text.removesuffix("\n")
        except KeyError:
            missing.append(f"secret {source.name} is not set in your environment")
        except (OSError, UnicodeDecodeError) as error:
            missing.append(f"secret {source.name}: {source.file}: {error}")
    if missing:
        raise UsageError("\n".join(missing), hint="set it, or take it out of `secrets:`")
    return values
