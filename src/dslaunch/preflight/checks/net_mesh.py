"""Whether every node reaches every other by TCP, and whether big packets pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from dslaunch.preflight.check import (
    Asked,
    Check,
    Finding,
    Flow,
    NodeAnswers,
    Nodes,
    Question,
    Round,
    Scope,
)
from dslaunch.preflight.checks._machine import INTERFACES, address, resolve
from dslaunch.preflight.unanswered import CallFailure, UnansweredReason
from dslaunch.protocol.survey import Listening

PAYLOAD = 64 * 1024
"""Bytes that each node sends to its neighbor; more than any frame, less than any buffer."""
ALL_PAIRS = 32
"""Up to so many nodes everybody calls everybody; beyond, those 1, 2, 4, 8, ... places on: every
node calls and is called, near and far, and the calls grow as the nodes' logarithm each."""
TIMEOUT = 5.0
OF_MTU = (
    "set the same MTU on its interface, on the other nodes and on the switch",
    "ping -M do -s 1472 NODE",
)
"""What to do where large packets are lost, and how to see it."""


def _listening(scope: Scope) -> Question:
    return Question("listen", {"ports": [0], "token": scope.token})


def ask(scope: Scope) -> Asked:
    """Return the questions for a node's address, and for a port that other nodes connect to."""
    return {
        "interfaces": INTERFACES,
        "resolve": resolve(scope),
        "listen": _listening(scope),
    }


def _ask(scope: Scope) -> Asked:
    master = scope.cluster.network.master_port
    if not master:
        return ask(scope)
    return {**ask(scope), "port": Question("listen", {"ports": [master], "token": scope.token})}


def _dial(targets: Mapping[str, Any], scope: Scope, big: str) -> Question:
    argument = {
        "targets": dict(targets),
        "token": scope.token,
        "timeout": TIMEOUT,
        "payload": {big: PAYLOAD},
    }
    return Question("dial", argument, TIMEOUT + 5)


def calls(nodes: Nodes) -> dict[str, Question]:
    """Whom every node calls; the first of them gets the payload."""
    hosts = [host for host, a in nodes.items() if address(a) and port(a)]
    steps = list(range(1, len(hosts)))
    if len(hosts) > ALL_PAIRS:
        steps = [step for step in steps if step & (step - 1) == 0]
    found = {}
    for at, host in enumerate(hosts):
        others = [hosts[(at + step) % len(hosts)] for step in steps]
        targets = {h: [address(nodes[h]), port(nodes[h])] for h in others}
        if targets:
            found[host] = _dial(targets, nodes[host].scope, others[0])
    return found


def port(a: NodeAnswers) -> int | None:
    """The port that the node holds for connections of other nodes; None if it holds none."""
    held: Listening | None = a.found(_listening(a.scope))
    return held["port"] if held else None


def _flow(scope: Scope) -> Flow:
    nodes = yield Round.of_all(scope, _ask(scope))
    asked = calls(nodes)
    nodes = yield Round({host: {"dial": question} for host, question in asked.items()})
    return _judge(nodes, asked)


def _judge(nodes: Nodes, asked: Mapping[str, Question]) -> Iterator[Finding]:
    errors: dict[tuple[str, str], CallFailure] = {}
    heard = [
        host for host, question in asked.items() if host in nodes and nodes[host].answered(question)
    ]
    for host in heard:
        for to, answer in nodes[host].value(asked[host]).items():
            if "error" in answer:
                errors[host, to] = CallFailure.parse(answer["error"])
    for host in nodes if len(nodes) > 1 else ():
        if host not in heard:
            yield Finding("unknown", "did not connect to the other nodes", hosts=(host,))
    yield from blamed(errors)
    fine = tuple(host for host in heard if not any(host in pair for pair in errors))
    yield Finding("pass", "connects to the other nodes by TCP", hosts=fine)


def blamed(errors: Mapping[tuple[str, str], CallFailure]) -> Iterator[Finding]:
    """Yield a finding for the node with the most failed calls, then for the next one, until all
    failed calls are explained."""
    left = dict(errors)
    while left:
        counts = Counter(host for pair in left for host in pair)
        host = max(counts, key=lambda h: (counts[h], h))
        mine = {pair: why for pair, why in left.items() if host in pair}
        into = {pair: why for pair, why in mine.items() if pair[1] == host}
        why = Counter((into or mine).values()).most_common(1)[0][0]
        others = len({h for pair in mine for h in pair} - {host})
        one = next(iter({h for pair in mine for h in pair} - {host}))
        whom = f"{others} other nodes" if others > 1 else one
        trouble = f"{whom} cannot connect to it" if into else f"cannot connect to {whom}"
        fix, see = OF_MTU if why.reason is UnansweredReason.LARGE_PACKETS_LOST else ("", "")
        yield Finding(
            "fail", f"{trouble}: {why.text.lower()}", "an answer", fix, see, hosts=(host,)
        )
        left = {pair: why for pair, why in left.items() if host not in pair}


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
