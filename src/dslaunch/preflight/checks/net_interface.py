"""Whether the nodes' addresses are on real interfaces, called alike."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from dslaunch.preflight.check import (
    Answers,
    Asked,
    Check,
    Question,
    Scope,
    Verdict,
    passed,
    skipped,
)
from dslaunch.preflight.checks._alike import alike
from dslaunch.preflight.checks._machine import INTERFACES, own_interface, resolve
from dslaunch.preflight.checks.net_mesh import VIRTUAL, address

ROUTES = Question("read", ["/proc/net/route"])


def _ask(scope: Scope) -> Asked:
    return {"interfaces": INTERFACES, "resolve": resolve(scope), "routes": ROUTES}


def _judge(a: Answers) -> Iterator[Verdict]:
    if a.scope.cluster.same_machine:
        yield skipped("emulated nodes are one machine")
        return
    mine, own = address(a), own_interface(a)
    if mine is None:
        words = "it has no address that other nodes could dial"
        yield Verdict(
            "fail" if len(a.scope.nodes) > 1 else "info", words, "an interface that is up"
        )
        return
    if own is None:
        words = "its address is on none of its interfaces"
        yield Verdict("warn", words, "an address of its own: NCCL and gloo tell others theirs")
    elif own["name"].startswith(VIRTUAL):
        yield Verdict("warn", f"its address is on {own['name']}", "a real interface")
    elif not own["up"]:
        yield Verdict("fail", f"{own['name']} is down", "up")
    elif _link_local(mine):
        yield Verdict("warn", f"its address on {own['name']} is link-local", "one that is routed")
    else:
        yield passed(f"its address is on {own['name']}")
    outward = _default(a["routes"].get(ROUTES.argument[0], ""))
    if outward.startswith(VIRTUAL):
        yield Verdict("warn", f"the default route leads to {outward}", "a real interface")


def _default(text: str) -> str:
    """The interface of the default route with the least metric; proc(5), /proc/net/route."""
    rows = [line.split() for line in text.splitlines()[1:]]
    found = [
        (int(r[6]), r[0])
        for r in rows
        if len(r) > 7 and r[1] == r[7] == "00000000" and re.fullmatch("[0-9]{1,9}", r[6])
    ]
    return min(found, default=(0, ""))[1]


def _link_local(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_link_local
    except ValueError:
        return False


def _name(a: Answers) -> str | None:
    own = own_interface(a)
    return own["name"] if own is not None else None


CHECK = Check(
    title="the nodes' addresses are on real interfaces, called alike",
    tier="static",
    why="NCCL and gloo choose an interface by its name. One variable for all nodes does not fit "
    "where names differ; docker0 and virbr0 have the same address on every node, and lead nowhere.",
    fix="let the node's name lead to its real address; where names differ, dslaunch sets "
    "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME for each node; other launchers do not",
    see="ip -br addr; ip route",
    source="NCCL documentation, NCCL_SOCKET_IFNAME; PyTorch, GLOO_SOCKET_IFNAME",
    ask=_ask,
    judge=_judge,
    compare=alike(_name, found="its interface is {value}"),
)
