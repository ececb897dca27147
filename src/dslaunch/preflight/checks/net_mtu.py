"""Whether all nodes send packets of the same size."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import (
    Asked,
    Check,
    Nodes,
    Scope,
    UnansweredError,
    Verdict,
    as_on,
    odd_ones,
)
from dslaunch.preflight.checks._machine import INTERFACES, own_interface, resolve


def _ask(scope: Scope) -> Asked:
    return {"interfaces": INTERFACES, "resolve": resolve(scope)}


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    sizes: dict[str, str] = {}
    for host, a in nodes.items():
        try:
            own = own_interface(a)
        except UnansweredError as why:
            yield Verdict("unknown", str(why), hosts=(host,))
            continue
        if own is not None and own["mtu"] is not None:
            sizes[host] = f"MTU {own['mtu']}"
    odd: set[str] = set()
    for size, hosts, common, count in odd_ones(sizes):
        odd |= set(hosts)
        yield Verdict("warn", size, as_on(common, count), hosts=hosts)
    fine = tuple(host for host in sizes if host not in odd)
    if fine:
        yield Verdict("pass", sizes[fine[0]], hosts=fine)


CHECK = Check(
    title="all nodes send packets of the same size",
    tier="static",
    why="Where a packet is larger than the next link takes, and nobody says so, it is lost: small "
    "messages pass and the first gradient hangs.",
    fix="the same MTU on all nodes and on the switch; 1500 where in doubt",
    see="ip link; ping -M do -s 8972 NODE",
    source="RFC 2923; pytorch#25767",
    ask=_ask,
    compare=_compare,
)
