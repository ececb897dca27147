"""Ask the nodes: two rounds of questions to all at once, and what they said as facts."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dslaunch.cluster.model import Allocation, Cluster, Placement
from dslaunch.errors import NodeError, NodeFailure
from dslaunch.launch.decide import master_addresses, ports_to_try
from dslaunch.launch.facts import (
    Accelerators,
    Dialled,
    Directory,
    Facts,
    Interface,
    NodeFacts,
    PortFact,
)
from dslaunch.protocol import queries
from dslaunch.protocol.queries import Answers
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.session import LostError, Session
from dslaunch.run.source import JobFiles

if TYPE_CHECKING:
    from dslaunch.deepspeed.in_code import Named

ANSWER_TIMEOUT = 30.0
"""Seconds for one round of questions; a node that takes longer has a hung disk or driver."""
DIAL_TIMEOUT = 3.0
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Inquiry:
    """What to find out, and of whom."""

    cluster: Cluster
    allocation: Allocation
    directories: tuple[str, ...]
    """Directories of which it is asked who shares them; made where they are missing."""
    source: JobFiles | None
    here: Path | None = None
    """The directory of this machine that stands for the nodes' one with the job's files."""
    configs: tuple[Named, ...] = ()
    """The DeepSpeed configs that the job's code names."""
    before: str | None = None
    """The name that the agents of an earlier attempt had: what they left is ended."""


def gather(inquiry: Inquiry, sessions: list[Session], interrupts: Interrupts) -> Facts:
    """Ask every node and give what they said. Sessions are in rank order, the first the master.

    Raises NodeError for nodes that did not answer, Interrupted when the user gives up.
    """
    mark, token = f".dslaunch-{secrets.token_hex(8)}", secrets.token_hex(8)
    marks = [f"{mark}-{placement.node_rank}" for placement in inquiry.allocation.placements]
    clocks = [session.measure_clock() for session in sessions]
    first = ask_all(
        [
            session.ask(_first_questions(inquiry, placement, marks, token))
            for session, placement in zip(sessions, inquiry.allocation.placements, strict=True)
        ],
        sessions,
        interrupts,
    )
    own_files = _own_files(inquiry, marks)
    addresses = _candidates(inquiry, first)
    port = first[0][queries.LISTEN]["port"]
    read = {"paths": inquiry.directories, "names": marks}
    questions: dict[queries.Query[Any], Any] = {queries.MARKS: read}
    if port is not None:
        targets = {address: [address, port] for address in addresses}
        dial = {"targets": targets, "token": token, "timeout": DIAL_TIMEOUT}
        questions[queries.DIAL] = dial
    second = ask_all([session.ask(questions) for session in sessions], sessions, interrupts)
    for session, name in zip(sessions, marks, strict=True):
        session.ask({queries.UNMARK: {"paths": inquiry.directories, "name": name}})
    wait(clocks, ANSWER_TIMEOUT)
    owner = dict(zip(marks, inquiry.allocation.hosts, strict=True))
    wanted = _digests(inquiry)
    nodes = tuple(
        _node_facts(session, owner, wanted, before, after)
        for session, before, after in zip(sessions, first, second, strict=True)
    )
    return Facts(nodes, _port(first[0]), own_files)


def ask_all(
    futures: Sequence[Future[Value]],
    sessions: Sequence[Session],
    interrupts: Interrupts,
    *,
    timeout: float = ANSWER_TIMEOUT,
) -> list[Value]:
    """Wait for every node's answer. Raises NodeError naming all that failed, Interrupted."""
    interrupts.wait(list(futures), timeout)
    failures = []
    for session, future in zip(sessions, futures, strict=True):
        if not future.done():
            why = f"no answer within {timeout:.0f} s"
            hint = "look for a hung file system or driver there"
            failures.append(NodeFailure(session.host, "timeout", why, hint))
        elif isinstance(error := future.exception(), LostError):
            failures.append(error.failure)
    if failures:
        raise NodeError(tuple(failures))
    return [future.result() for future in futures]


def _own_files(inquiry: Inquiry, marks: Sequence[str]) -> tuple[str, ...]:
    """The nodes whose marks appear in this machine's directory of the job."""
    here = inquiry.here
    if here is None:
        return ()
    pairs = zip(inquiry.allocation.hosts, marks, strict=True)
    return tuple(host for host, mark in pairs if os.path.lexists(here / mark))


def _first_questions(
    inquiry: Inquiry, placement: Placement, marks: list[str], token: str
) -> queries.Questions:
    master = inquiry.allocation.placements[0]
    write = {"paths": inquiry.directories, "name": marks[placement.node_rank]}
    questions: dict[queries.Query[Any], Any] = {
        queries.INTERFACES: None,
        queries.GPUS: None,
        queries.ACCELERATORS: None,
        queries.RESOLVE: [master.node.host],
        queries.INTERPRETER: placement.node.python or "python3",
        queries.DIRECTORIES: inquiry.directories,
        queries.MARK: write,
    }
    if inquiry.before is not None:
        questions[queries.CLEAN] = {"run": inquiry.before, "ended": False}
    if inquiry.source is not None:
        files = {"root": inquiry.source.remote, "paths": list(_digests(inquiry))}
        questions[queries.DIGESTS] = files
    if placement is master:
        # the token is as good a seed as any: new in each run, so that two runs seldom collide
        ports = ports_to_try(inquiry.cluster, int(token, 16))
        questions[queries.LISTEN] = {"ports": ports, "token": token}
    return questions


def _digests(inquiry: Inquiry) -> dict[str, str]:
    """The job's files with their digests; where only the script is to be looked for, with none."""
    source = inquiry.source
    if source is None:
        return {}
    return dict(source.digests) or ({source.script: ""} if source.script else {})


def _candidates(inquiry: Inquiry, first: list[Answers]) -> list[str]:
    master = inquiry.allocation.placements[0]
    host = master.node.host
    resolved = [address for answers in first[1:] for address in answers[queries.RESOLVE][host]]
    return master_addresses(inquiry.cluster, master, _interfaces(first[0]), resolved)


def _accelerators(answers: Answers) -> tuple[Accelerators, ...]:
    told = answers.get(queries.ACCELERATORS) or {}
    return tuple(Accelerators(vendor, **each) for vendor, each in told.items())


def _interfaces(answers: Answers) -> tuple[Interface, ...]:
    told = answers.get(queries.INTERFACES) or ()
    return tuple(Interface(**each) for each in told)


def _port(answers: Answers) -> PortFact:
    listening = answers[queries.LISTEN]
    taken = tuple((each["port"], each["error"]) for each in listening.get("taken", ()))
    return PortFact(listening["port"], taken)


def _node_facts(
    session: Session,
    owner: Mapping[str, str],
    wanted: Mapping[str, str],
    first: Answers,
    second: Answers,
) -> NodeFacts:
    """What one node said. `owner`: the node of each mark, in rank order; `wanted`: the digests
    that the job's files should have."""
    hello = session.hello.result()
    seen = second[queries.MARKS]
    left = first[queries.MARK]
    digests = first.get(queries.DIGESTS) or {}
    dialed = second.get(queries.DIAL) or {}
    master = next(iter(owner.values()))
    directories = tuple(
        Directory(
            asked=asked,
            path=made.path,
            error=made.error or left[asked],
            seen=tuple(owner[mark] for mark in seen[asked]),
            made=made.made,
        )
        for asked, made in first[queries.DIRECTORIES].items()
    )
    return NodeFacts(
        host=session.host,
        machine=hello.machine,
        home=hello.home,
        interfaces=_interfaces(first),
        master_resolves=tuple(first[queries.RESOLVE][master]),
        interpreter=first.get(queries.INTERPRETER),
        gpus=first.get(queries.GPUS),
        gpu_error=first.error(queries.GPUS),
        accelerators=_accelerators(first),
        dialled=tuple(
            Dialled(address, each.get("local"), each.get("error"))
            for address, each in dialed.items()
        ),
        directories=directories,
        different=tuple(
            sorted((path, found) for path, found in digests.items() if found != wanted[path])
        ),
    )
