"""Ask the nodes: two rounds of questions to all at once, and what they said as facts."""

from __future__ import annotations

import secrets
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from dslaunch.cluster.model import Allocation, Cluster, Placement
from dslaunch.errors import NodeError, NodeFailure
from dslaunch.launch.decide import master_addresses, ports_to_try
from dslaunch.launch.facts import Dialled, Directory, Facts, Interface, NodeFacts, PortFact
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.session import LostError, Session
from dslaunch.run.source import Source

ANSWER_TIMEOUT = 30.0
"""Seconds for one round of questions; a node that takes longer has a hung disk or driver."""
DIAL_TIMEOUT = 3.0


@dataclass(frozen=True, slots=True)
class Inquiry:
    """What to find out, and of whom."""

    cluster: Cluster
    allocation: Allocation
    directories: tuple[str, ...]
    """Directories of which it is asked who shares them; made where they are missing."""
    source: Source | None
    before: str | None = None
    """The name that the agents of an earlier attempt had: what they left is ended."""


Answers = dict[str, Any]


def gather(inquiry: Inquiry, sessions: list[Session], interrupts: Interrupts) -> Facts:
    """Ask every node and give what they said. Sessions are in rank order, the first the master.

    Raises NodeError for nodes that did not answer, Interrupted when the user gives up.
    """
    mark, token = f".dslaunch-{secrets.token_hex(8)}", secrets.token_hex(8)
    marks = [f"{mark}-{placement.node_rank}" for placement in inquiry.allocation.placements]
    clocks = [session.measure_clock() for session in sessions]
    first = ask_all(
        [
            session.ask(**_first_questions(inquiry, placement, marks, token))
            for session, placement in zip(sessions, inquiry.allocation.placements, strict=True)
        ],
        sessions,
        interrupts,
    )
    addresses = _candidates(inquiry, first)
    port = first[0]["listen"]["value"]["port"]
    dial = {"addresses": addresses, "port": port, "token": token, "timeout": DIAL_TIMEOUT}
    read = {"paths": inquiry.directories, "names": marks}
    questions: Answers = {"nonce_read": read} | ({"dial": dial} if port is not None else {})
    second = ask_all([session.ask(**questions) for session in sessions], sessions, interrupts)
    for session, name in zip(sessions, marks, strict=True):
        session.ask(nonce_remove={"paths": inquiry.directories, "name": name})
    wait(clocks, ANSWER_TIMEOUT)
    nodes = tuple(
        _node_facts(session, marks, inquiry.allocation.hosts, before | after)
        for session, before, after in zip(sessions, first, second, strict=True)
    )
    return Facts(nodes, _port(first[0]))


def ask_all(
    futures: list[Future[Any]],
    sessions: list[Session],
    interrupts: Interrupts,
    *,
    timeout: float = ANSWER_TIMEOUT,
) -> list[Any]:
    """Wait for every node's answer. Raises NodeError naming all that failed, Interrupted."""
    interrupts.wait(futures, timeout)
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


def _first_questions(
    inquiry: Inquiry, placement: Placement, marks: list[str], token: str
) -> Answers:
    master = inquiry.allocation.placements[0]
    write = {"paths": inquiry.directories, "name": marks[placement.node_rank]}
    questions: Answers = {
        "interfaces": None,
        "gpus": None,
        "resolve": [master.node.host],
        "interpreter": placement.node.python or "python3",
        "nonce_write": write,
    }
    if inquiry.before is not None:
        questions["clean"] = {"run": inquiry.before, "ended": False}
    source = inquiry.source
    if source is not None:
        wanted = dict(source.digests) or ({source.script: ""} if source.script else {})
        questions["files"] = {"root": source.remote, "digests": wanted}
    if placement is master:
        # the token is as good a seed as any: new in each run, so that two runs seldom collide
        ports = ports_to_try(inquiry.cluster, int(token, 16))
        questions["listen"] = {"ports": ports, "token": token}
    return questions


def _candidates(inquiry: Inquiry, first: list[Answers]) -> list[str]:
    master = inquiry.allocation.placements[0]
    host = master.node.host
    resolved = [a for answers in first[1:] for a in answers["resolve"]["value"][host]]
    return master_addresses(inquiry.cluster, master, _interfaces(first[0]), resolved)


def _interfaces(answers: Answers) -> tuple[Interface, ...]:
    return tuple(Interface(**fields) for fields in answers["interfaces"].get("value", ()))


def _port(answers: Answers) -> PortFact:
    listening = answers["listen"]["value"]
    return PortFact(listening["port"], tuple((t["port"], t["error"]) for t in listening["taken"]))


def _node_facts(
    session: Session, marks: list[str], hosts: tuple[str, ...], answers: Answers
) -> NodeFacts:
    hello = session.hello.result()
    owner = dict(zip(marks, hosts, strict=True))
    seen = answers["nonce_read"]["value"]
    written = answers["nonce_write"]["value"]
    dialled = answers.get("dial", {}).get("value", {})
    return NodeFacts(
        host=session.host,
        machine=hello["machine"],
        home=hello["home"],
        interfaces=_interfaces(answers),
        master_resolves=tuple(answers["resolve"]["value"][hosts[0]]),
        interpreter=answers["interpreter"].get("value"),
        gpus=answers["gpus"].get("value"),
        gpu_error=answers["gpus"].get("error"),
        dialled=tuple(Dialled(a, d.get("local"), d.get("error")) for a, d in dialled.items()),
        directories=tuple(
            Directory(asked, d["path"], d["error"], tuple(owner[m] for m in seen[asked]))
            for asked, d in written.items()
        ),
        different=tuple(sorted(answers.get("files", {}).get("value", {}).items())),
    )
