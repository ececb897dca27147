"""Whether every node reaches every other by TCP, and whether big packets pass."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
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
from dslaunch.preflight.unanswered import CallFailure, UnansweredReason
from dslaunch.protocol.survey import Listening

PAYLOAD = 64 * 1024
"""Bytes that each node sends to its neighbour; more than any frame, less than any buffer."""
ALL_PAIRS = 32
"""Up to so many nodes everybody calls everybody; beyond, those 1, 2, 4, 8, ... places on: every
node calls and is called, near and far, and the calls grow as the nodes' logarithm each."""
TIMEOUT = 5.0
OF_MTU = (
    "set the same MTU on its interface, on the other nodes and on the switch",
    "ping -M do -s 1472 NODE",
)
"""What to do where large packets are lost, and how to see it."""
VIRTUAL = ("docker", "virbr", "veth", "br-", "cni", "flannel", "podman", "lxc")


def ask(scope: Scope) -> Asked:
    """Return what tells a node's address, and a port for the others to connect to."""
    return {
        "interfaces": Question("interfaces"),
        "resolve": Question("resolve", [node.host for node in scope.nodes]),
        "listen": Question("listen", {"ports": [0], "token": scope.token}),
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
    held: Listening | None = a["listen"] if a.has("listen") else None
    return held["port"] if held else None


def address(a: NodeAnswers) -> str | None:
    """What the others dial: as the cluster file says, as they resolve its name, or as it says.

    A node can name any address: others then connect to it, but send nothing before the token of
    this preflight was read from there. None of its own addresses stands for those who dial.
    """
    if a.node.address is not None:
        return a.node.address
    own = (
        [i for i in a["interfaces"] if i["up"] and not i["loopback"]] if a.has("interfaces") else []
    )
    real = [
        i["address"]
        for i in own
        if not i["name"].startswith(VIRTUAL) and _of_one_machine(i["address"])
    ]
    named = a["resolve"].get(a.host, []) if a.has("resolve") else []
    good = [text for text in named if text in real]
    v4 = [text for text in real if ":" not in text]
    return next(iter([*good, *v4, *real]), None)


@cache
def _of_one_machine(text: str) -> bool:
    """Whether it is an address that leads from other nodes to one of them."""
    named = ipaddress.ip_address(text)
    found = getattr(named, "ipv4_mapped", None) or named
    return not (found.is_loopback or found.is_unspecified or found.is_multicast)


def _flow(nodes: Nodes) -> Flow:
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
            yield Finding("unknown", "did not call the other nodes", hosts=(host,))
    yield from blamed(errors)
    fine = tuple(host for host in heard if not any(host in pair for pair in errors))
    yield Finding("pass", "reaches the other nodes by TCP", hosts=fine)


def blamed(errors: Mapping[tuple[str, str], CallFailure]) -> Iterator[Finding]:
    """Who is at fault: whoever has a part in most of the calls that failed, and so on."""
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
        way = f"cannot be called by {whom}" if into else f"cannot call {whom}"
        fix, see = OF_MTU if why.reason is UnansweredReason.LARGE_PACKETS_LOST else ("", "")
        yield Finding("fail", f"{way}: {why.text.lower()}", "an answer", fix, see, hosts=(host,))
        left = {pair: why for pair, why in left.items() if host not in pair}


CHECK = Check(
    title="every node reaches every other by TCP, with big packets too",
    why="NCCL and gloo connect all ranks with each other on any port. A firewall between two nodes "
    "shows as a hang of 10 to 30 minutes; a too small MTU on the way lets small messages pass and "
    "hangs at the first gradient.",
    fix="open all TCP ports between the nodes: firewalld, ufw, nftables, security groups",
    see="nc -vz NODE PORT",
    source="NCCL documentation, troubleshooting: networking; pytorch#25767",
    ask=_ask,
    flow=_flow,
)
