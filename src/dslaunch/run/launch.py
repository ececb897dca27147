"""The main flow: connect, ask, decide, ship, plan, run, record."""

from __future__ import annotations

import contextlib
import secrets as randomness
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Queue
from typing import Protocol

from dslaunch import transport
from dslaunch.cluster.model import Allocation, Cluster, SecretSource
from dslaunch.errors import NodeError, NodeFailure, UsageError
from dslaunch.launch import launchers
from dslaunch.launch.facts import facts_to_json
from dslaunch.launch.job import Job
from dslaunch.launch.plan import Plan, World, make_plan
from dslaunch.launch.serialise import to_json
from dslaunch.run.boot import Agent
from dslaunch.run.events import Event
from dslaunch.run.evidence import ask_all, gather
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.outcome import Outcome
from dslaunch.run.prepare import decide, inquiry, ship
from dslaunch.run.record import Record, state_directory
from dslaunch.run.session import Inbox, Session
from dslaunch.run.supervisor import Patience, Screen, Supervisor
from dslaunch.transport.pool import connect_all

INBOX_SIZE = 4096
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


class Announcer(Screen, Protocol):
    """A screen that is also told of the plan before anything starts."""

    def plan(self, plan: Plan, directory: Path) -> None:
        """What was decided, and where the run is recorded."""


def run_job(request: Request, screen: Announcer) -> tuple[Outcome, Path]:
    """Run a job on its nodes to the end; give how it ended and the run directory.

    Raises a DslaunchError for whatever prevents the start; then nothing was started anywhere.
    """
    secrets = read_secrets(request.job.secrets, request.environ)
    # an impossible request is refused before any node is spoken to
    launcher = launchers.get(request.job.launcher)
    with Interrupts() as interrupts, contextlib.ExitStack() as stack:
        run = new_run_id(request.job)
        inbox: Inbox = Queue(INBOX_SIZE)
        sessions = open_sessions(request, run, inbox, screen, interrupts, stack)
        question = inquiry(request.cluster, request.allocation, request.job, request.cwd)
        facts = gather(question, sessions, interrupts)
        decided, job, shipments = decide(question, facts, request.job, request.cwd, request.sync)
        launcher.check(World(request.allocation, decided.rendezvous))
        plan = make_plan(request.allocation, job, decided, cluster=request.cluster.name)
        record = open_record(state_directory(request.environ) / "runs" / run)
        record.write("plan.json", to_json(plan))
        record.write("facts.json", facts_to_json(facts))
        screen.plan(plan, record.directory)
        ship(question.source, shipments, sessions, interrupts)
        interrupts.check()
        supervisor = Supervisor(plan, sessions, inbox, record, screen, interrupts, request.patience)
        outcome = supervisor.run(secrets)
        record.close(asdict(outcome))
        return outcome, record.directory


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


def open_sessions(
    request: Request,
    run: str,
    inbox: Inbox,
    screen: Screen,
    interrupts: Interrupts,
    stack: contextlib.ExitStack,
) -> list[Session]:
    """Connect to every node and start its agent; all are closed when `stack` is.

    Raises NodeError naming every node that could not be used.
    """
    nodes = [placement.node for placement in request.allocation.placements]
    way = transport.get(request.cluster.transport, request.cluster)
    stack.callback(way.close)
    made = connect_all(way, nodes, request.cluster.ssh.fanout)
    opened = {host: c for host, c in made.items() if not isinstance(c, NodeFailure)}
    for connection in opened.values():
        stack.callback(connection.close)
    interrupts.check()
    failures = tuple(f for f in made.values() if isinstance(f, NodeFailure))
    if failures:
        raise NodeError(failures)
    sessions = []
    for node in nodes:
        agent = Agent(run, node.host, request.patience.silence, request.patience.reconnect)
        sessions.append(Session(node, opened[node.host], agent, inbox, way))
    stack.enter_context(_closing(sessions))
    for session in sessions:
        session.begin()
    ask_all([session.hello for session in sessions], sessions, interrupts)
    for session in sessions:
        screen.event(Event(time.time(), "connected", session.host))
    return sessions


@contextlib.contextmanager
def _closing(sessions: list[Session]) -> Iterator[None]:
    """Say goodbye to all at once: a node that is slow to leave must not hold up the others."""
    from concurrent.futures import ThreadPoolExecutor

    try:
        yield
    finally:
        with ThreadPoolExecutor(max_workers=32) as pool:
            list(pool.map(Session.close, sessions))
