"""Ask all nodes at once, in two rounds of questions, and return the facts."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

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
from dslaunch.run.job_files import JobFiles
from dslaunch.run.session import Session
from dslaunch.run.view import ignore
from dslaunch.transport.future import Future
from dslaunch.transport.loop import paced
from dslaunch.transport.wire import LostError

if TYPE_CHECKING:
    from dslaunch.deepspeed.named_configs import NamedConfig

ANSWER_TIMEOUT = 30.0
"""Seconds for one round of questions; a node that takes longer has a hung disk or driver."""
DIAL_TIMEOUT = 3.0
"""Seconds for a connection to one address of the first node."""
Value = TypeVar("Value")


class Inquiry(Struct, frozen=True):
    """What to ask which nodes."""

    cluster: Cluster
    allocation: Allocation
    directories: tuple[str, ...]
    """Directories to test for sharing; created where they are missing."""
    source: JobFiles | None
    here: Path | None = None
    """The directory on this machine that corresponds to the nodes' directory of the job."""
    configs: tuple[NamedConfig, ...] = ()
    """The DeepSpeed configs that the job's code names."""
    before: str | None = None
    """The agents' name in the previous attempt, whose processes are ended."""


def gather(
    inquiry: Inquiry,
    sessions: list[Session],
    interrupts: Interrupts,
    notify: Callable[[tuple[str, ...]], object] = ignore,
) -> Facts:
    """Ask every node and return the facts. Sessions are in rank order, the first is the master.

    `notify` is called several times a second with the nodes that have not answered.
    Raises NodeError for nodes that did not answer, Interrupted.
    """
    placements = inquiry.allocation.placements
    mark, token = f".dslaunch-{secrets.token_hex(8)}", secrets.token_hex(8)
    marks = [f"{mark}-{placement.node_rank}" for placement in placements]
    claim = f"{mark}-first"
    known = queries.KnownValues()
    common = _common_questions(inquiry)
    own = (
        _own_questions(inquiry, placement, marks, claim=claim, token=token)
        for placement in placements
    )
    asked = [
        session.ask({**common, **questions}, known)
        for session, questions in paced(zip(sessions, own, strict=True))
    ]
    first = ask_all(asked, sessions, interrupts, notify=notify)
    own_files = _own_files(inquiry, marks)
    common = _second_questions(inquiry, first, token)
    asked_next = [
        session.ask(
            {queries.UNMARK: _test_files(inquiry, answers, name=name, claim=claim), **common}, known
        )
        for session, name, answers in paced(zip(sessions, marks, first, strict=True))
    ]
    second = ask_all(asked_next, sessions, interrupts, notify=notify)
    marked_by = dict(zip(marks, inquiry.allocation.hosts, strict=True))
    expected = _digests(inquiry)
    nodes = tuple(
        _node_facts(session, before, after, marked_by=marked_by, expected=expected)
        for session, before, after in zip(sessions, first, second, strict=True)
    )
    return Facts(nodes, _port(first[0]), own_files)


def ask_all(
    futures: Sequence[Future[Value]],
    sessions: Sequence[Session],
    interrupts: Interrupts,
    *,
    timeout: float = ANSWER_TIMEOUT,
    notify: Callable[[tuple[str, ...]], object] = ignore,
) -> list[Value]:
    """Wait for every node's answer. Raises NodeError naming all that failed, Interrupted.

    A node is late if no node has answered for `timeout` seconds: a launcher that is busy with the
    answers of thousands must not call the last of them hung.
    `notify` is called several times a second with the nodes that have not answered.
    """
    pairs = list(zip(sessions, futures, strict=True))
    late = dict.fromkeys(session.host for session in sessions)
    # what has been answered since the last look: to look at all that is late takes too long
    answered: SimpleQueue[str] = SimpleQueue()
    for session, future in pairs:
        future.add_done_callback(partial(_note_answer, answered, session.host))

    def tell_late() -> None:
        while not answered.empty():
            del late[answered.get()]
        notify(tuple(late))

    interrupts.wait(list(futures), timeout, tell_late, renewed=True)
    failures = []
    for session, future in pairs:
        if not future.done():
            why = f"no answer within {timeout:.0f} s"
            hint = "check for a hung file system or driver there"
            failures.append(NodeFailure(session.host, "timeout", why, hint))
        elif isinstance(error := future.exception(), LostError):
            failures.append(error.failure)
    if failures:
        raise NodeError(tuple(failures))
    return [future.result() for future in futures]


def _note_answer(answered: SimpleQueue[str], host: str, future: Future[Any]) -> None:
    answered.put(host)


def _own_files(inquiry: Inquiry, marks: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes whose marks appear in this machine's directory of the job."""
    here = inquiry.here
    if here is None:
        return ()
    pairs = zip(inquiry.allocation.hosts, marks, strict=True)
    return tuple(host for host, mark in pairs if os.path.lexists(here / mark))


def _common_questions(inquiry: Inquiry) -> queries.Questions:
    """Return what all nodes are asked first."""
    master = inquiry.allocation.placements[0]
    questions: dict[queries.Query[Any], Any] = {
        queries.INTERFACES: None,
        queries.GPUS: None,
        queries.ACCELERATORS: None,
        queries.RESOLVE: [master.node.host],
        queries.DIRECTORIES: inquiry.directories,
    }
    if inquiry.before is not None:
        questions[queries.CLEAN] = {"run": inquiry.before, "ended": False}
    if inquiry.source is not None:
        files = {"root": inquiry.source.remote, "paths": list(_digests(inquiry))}
        questions[queries.DIGESTS] = files
    return questions


def _own_questions(
    inquiry: Inquiry, placement: Placement, marks: list[str], *, claim: str, token: str
) -> queries.Questions:
    """Return what a node is asked first, and others otherwise."""
    name = marks[placement.node_rank]
    write = {"paths": inquiry.directories, "name": name}
    first = {"paths": inquiry.directories, "name": claim, "text": name, "count": len(marks)}
    questions: dict[queries.Query[Any], Any] = {
        queries.INTERPRETER: placement.node.python or "python3",
        queries.MARK: write,
        queries.CLAIM: first,
    }
    if placement is inquiry.allocation.placements[0]:
        # the token as a seed: new in each run, so that two runs seldom collide
        ports = ports_to_try(inquiry.cluster, int(token, 16))
        questions[queries.LISTEN] = {"ports": ports, "token": token}
    return questions


def _second_questions(inquiry: Inquiry, first: list[Answers], token: str) -> queries.Questions:
    """Return what depends on the first answers: the first node's addresses."""
    questions: dict[queries.Query[Any], Any] = {}
    port = first[0][queries.LISTEN]["port"]
    if port is not None:
        targets = {address: [address, port] for address in _candidates(inquiry, first)}
        dial = {"targets": targets, "token": token, "timeout": DIAL_TIMEOUT}
        questions[queries.DIAL] = dial
    return questions


def _test_files(
    inquiry: Inquiry, first: Answers, *, name: str, claim: str
) -> dict[str, Sequence[str]]:
    """Return the directories in which a node has created test files, by their names."""
    claimed = [path for path, text in first[queries.CLAIM].items() if text == name]
    return {name: inquiry.directories, claim: claimed}


def _digests(inquiry: Inquiry) -> dict[str, str]:
    """Return the job's files with their digests; if only the script is to be found, without."""
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
    first: Answers,
    second: Answers,
    *,
    marked_by: Mapping[str, str],
    expected: Mapping[str, str],
) -> NodeFacts:
    """Return the facts of one node. `marked_by`: the node of each mark, in rank order;
    `expected`: the digests of the job's files."""
    hello = session.hello.result()
    claimed = first[queries.CLAIM]
    left = first[queries.MARK]
    master = next(iter(marked_by.values()))
    directories = tuple(
        Directory(
            asked=asked,
            path=made.path,
            error=made.error or left[asked],
            # who cannot read what another node has written there shares nothing with it
            first=marked_by.get(claimed[asked] or "", session.host),
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
        dialled=_dialled(second),
        directories=directories,
        different=_different(first, expected),
    )


def _dialled(answers: Answers) -> tuple[Dialled, ...]:
    """Return which addresses of the first node were reached."""
    dialled = answers.get(queries.DIAL) or {}
    return tuple(
        Dialled(address, each.get("local"), each.get("error")) for address, each in dialled.items()
    )


def _different(answers: Answers, expected: Mapping[str, str]) -> tuple[tuple[str, str | None], ...]:
    """Return the files with another digest than expected, and their digests."""
    digests = answers.get(queries.DIGESTS) or {}
    different = ((path, found) for path, found in digests.items() if found != expected[path])
    return tuple(sorted(different))
