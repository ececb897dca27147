"""Whether every node reaches every other by TCP, and whether big packets pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Any

from dslaunch.preflight.check import (
    AskedOfAll,
    Check,
    Finding,
    Flow,
    NodeAnswers,
    Nodes,
    Question,
    Round,
    Scope,
)
from dslaunch.preflight.checks._machine import INTERFACES, address, neighbors, resolve
from dslaunch.preflight.unanswered import CallFailure, UnansweredReason
from dslaunch.protocol.survey import Listening

PAYLOAD = 64 * 1024
"""Bytes that each node sends to its neighbor; more than any frame, less than any buffer."""
TIMEOUT = 5.0
"""Seconds for the calls of a node."""
TIMEOUT_AGAIN = 20.0
"""Seconds for those that have failed, when they are repeated: a busy node may have been slow."""
OF_MTU = (
    "set the same MTU on its interface, on the other nodes and on the switch",
    "ping -M do -s 1472 NODE",
)
"""What to do where large packets are lost, and how to see it."""


def _listening(scope: Scope) -> Question:
    return Question("listen", {"ports": [0], "token": scope.token})


def ask(scope: Scope) -> AskedOfAll:
    """Return the questions for a node's address, and for a port that other nodes connect to."""
    return {
        "interfaces": INTERFACES,
        "resolve": resolve(scope),
        "listen": scope.once(_listening),
    }


def _ask(scope: Scope) -> AskedOfAll:
    master = scope.cluster.network.master_port
    if not master:
        return ask(scope)
    return {**ask(scope), "port": Question("listen", {"ports": [master], "token": scope.token})}


def _dial(
    targets: Mapping[str, Any], token: str, payload: Mapping[str, int], timeout: float
) -> Question:
    argument = {
        "targets": dict(targets),
        "token": token,
        "timeout": timeout,
        "payload": dict(payload),
    }
    return Question("dial", argument, timeout + 5)


def calls(nodes: Nodes) -> dict[str, Question]:
    """Whom every node calls; the first of them gets the payload."""
    held = {host: [address(a), port(a)] for host, a in nodes.items()}
    hosts = [host for host, place in held.items() if all(place)]
    found = {}
    for at, host in enumerate(hosts):
        others = neighbors(hosts, at)
        targets = {other: held[other] for other in others}
        if targets:
            payload = {others[0]: PAYLOAD}
            found[host] = _dial(targets, nodes[host].scope.token, payload, TIMEOUT)
    return found


def calls_again(
    first: Mapping[str, Question], heard: Mapping[str, Mapping[str, Any]]
) -> dict[str, Question]:
    """Return the calls that have failed, by the node that calls. `heard`: the answers to the first
    calls."""
    found = {}
    for host, question in first.items():
        asked = question.argument
        answers = heard.get(host, _NOTHING)
        left = {
            to: place
            for to, place in asked["targets"].items()
            if "error" in answers.get(to, _NO_ANSWER)
        }
        if left:
            payload = {to: size for to, size in asked["payload"].items() if to in left}
            found[host] = _dial(left, asked["token"], payload, TIMEOUT_AGAIN)
    return found


_NO_ANSWER = {"error": "no answer"}
_NOTHING: Mapping[str, Any] = {}


def called(nodes: Nodes, asked: Mapping[str, Question]) -> dict[str, Mapping[str, Any]]:
    """Return the answers to calls, by the node that has called and the one that it has called."""
    found = {}
    for host, question in asked.items():
        answers = nodes[host].found(question) if host in nodes else None
        if answers:
            found[host] = answers
    return found


def with_repeated(
    heard: Mapping[str, Mapping[str, Any]], again: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Return the answers to all calls; of those that were repeated the later ones."""
    return {**heard, **{host: {**heard.get(host, {}), **own} for host, own in again.items()}}


def port(a: NodeAnswers) -> int | None:
    """The port that the node holds for connections of other nodes; None if it holds none."""
    held: Listening | None = a.found(a.scope.once(_listening))
    return held["port"] if held else None


def _flow(scope: Scope) -> Flow:
    nodes = yield Round.of_all(scope, _ask(scope))
    asked = calls(nodes)
    nodes = yield Round({host: {"dial": question} for host, question in asked.items()})
    heard = called(nodes, asked)
    again = calls_again(asked, heard)
    if again:
        nodes = yield Round({host: {"again": question} for host, question in again.items()})
        heard = with_repeated(heard, called(nodes, again))
    return _judge(nodes, heard)


def _judge(nodes: Nodes, heard: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    errors: dict[tuple[str, str], CallFailure] = {}
    for host, answers in heard.items():
        for to, answer in answers.items():
            if "error" in answer:
                errors[host, to] = CallFailure.parse(answer["error"])
    if len(nodes) > 1:
        silent = tuple(host for host in nodes if host not in heard)
        yield Finding("unknown", "did not connect to the other nodes", hosts=silent)
    yield from blamed(errors)
    failed = {host for pair in errors for host in pair}
    fine = tuple(host for host in heard if host not in failed)
    yield Finding("pass", "connects to the other nodes by TCP", hosts=fine)


def blamed(errors: Mapping[tuple[str, str], CallFailure]) -> Iterator[Finding]:
    """Yield a finding for the node with the most failed calls, then for the next one, until all
    failed calls are explained."""
    left: dict[str, dict[tuple[str, str], CallFailure]] = {}
    for pair, why in errors.items():
        for host in pair:
            left.setdefault(host, {})[pair] = why
    # of equal numbers, the last name is first; numbers that have become smaller are put back
    queue = [(-len(left[host]), -at, host) for at, host in enumerate(sorted(left))]
    heapify(queue)
    while queue:
        count, at, host = heappop(queue)
        mine = left[host]
        if len(mine) != -count:
            heappush(queue, (-len(mine), at, host))
            continue
        if not mine:
            return
        into = {pair: why for pair, why in mine.items() if pair[1] == host}
        why = Counter((into or mine).values()).most_common(1)[0][0]
        others = sorted({end for pair in mine for end in pair} - {host})
        whom = others[0] if len(others) == 1 else f"{len(others)} other nodes"
        trouble = f"{whom} cannot connect to it" if into else f"cannot connect to {whom}"
        fix, see = OF_MTU if why.reason is UnansweredReason.LARGE_PACKETS_LOST else ("", "")
        yield Finding(
            "fail", f"{trouble}: {why.text.lower()}", "an answer", fix, see, hosts=(host,)
        )
        for pair in list(mine):
            for end in pair:
                left[end].pop(pair, None)


CHECK = Check(
    title="all nodes reach each other by TCP",
    why=(
        "NCCL and gloo connect all ranks with each other on any port. A firewall "
        "between two nodes shows as a hang of 10 to 30 minutes; if the MTU of the "
        "path is too small, small messages pass and the first gradient hangs."
    ),
    fix=("open all TCP ports between the nodes: firewalld, ufw, nftables, security groups"),
    see="nc -vz NODE PORT",
    source="NCCL documentation, troubleshooting: networking; pytorch#25767",
    flow=_flow,
)
