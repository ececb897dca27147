"""Whether this machine and every node mean the same machines by the nodes' names."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

from dslaunch.preflight.check import Asked, Check, Level, Nodes, Scope, UnansweredError, Verdict
from dslaunch.preflight.checks._machine import resolve

Names = Mapping[str, list[str]]


def _ask(scope: Scope) -> Asked:
    return {"names": resolve(scope)}


def _here(scope: Scope) -> Asked:
    """Names of ~/.ssh/config alone are asked of a name server in vain: nobody waits long for it."""
    return {"names": replace(resolve(scope), timeout=3)}


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    said: dict[str, Names] = {h: a["names"] for h, a in nodes.items() if a.has("names")}
    for host in nodes.keys() - said.keys():
        yield Verdict("unknown", "it was not asked, or its resolver did not answer", hosts=(host,))
    given = {node.host for a in nodes.values() for node in a.scope.nodes if node.address}
    odd: set[str] = set()
    for name in next(iter(nodes.values())).scope.nodes:
        for verdict in _of(name.host, said, name.host in given, nodes):
            odd |= set(verdict.hosts) if verdict.level != "info" else set()
            yield verdict
    fine = tuple(host for host in said if host not in odd)
    if fine:
        yield Verdict("pass", "knows the nodes by the same addresses as the others", hosts=fine)
    yield from _seen_here(nodes, said)


def _of(name: str, said: Mapping[str, Names], given: bool, nodes: Nodes) -> Iterator[Verdict]:
    """What the other nodes make of a name; its own node's answer is judged by `host.names`."""
    found = {host: set(names.get(name, ())) for host, names in said.items() if host != name}
    none = tuple(host for host, addresses in found.items() if not addresses)
    loop = tuple(
        host for host, addresses in found.items() if addresses and all(map(_loop, addresses))
    )
    needs = any("mpi" in a.scope.purposes for a in nodes.values())
    bad: Level = "fail" if needs else ("info" if given else "warn")
    if loop:
        yield Verdict(bad, f"{name} is its own loopback there", "its address", hosts=loop)
    if none and (len(none) < len(found) or needs):
        yield Verdict(bad, f"{name} has no address there", "the address others know", hosts=none)
    good = {h: addresses for h, addresses in found.items() if h not in (*none, *loop)}
    common = _most(good)
    other = tuple(host for host, addresses in good.items() if not addresses & common)
    if other:
        expected = f"{', '.join(sorted(common))}, as others have it"
        yield Verdict(bad, f"{name} is another address there", expected, hosts=other)


def _most(found: Mapping[str, set[str]]) -> frozenset[str]:
    """The addresses that most have; with equal numbers the first."""
    counts = Counter(map(frozenset, found.values()))
    return max(
        counts,
        key=lambda mine: sum(number for more, number in counts.items() if mine & more),
        default=frozenset(),
    )


@cache
def _loop(text: str) -> bool:
    try:
        return ipaddress.ip_address(text.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _seen_here(nodes: Nodes, said: Mapping[str, Names]) -> Iterator[Verdict]:
    """This machine may stand elsewhere and be right with other addresses: told, not judged."""
    first = next(iter(nodes.values()))
    try:
        here: Names = first.from_here(resolve(first.scope))
    except UnansweredError:
        return
    odd = []
    for name in nodes:
        there = {
            text for host, names in said.items() if host != name for text in names.get(name, ())
        }
        if there and here.get(name) and not there & set(here[name]):
            odd.append(name)
    if odd:
        yield Verdict("info", "this machine knows it by another address", hosts=tuple(odd))


CHECK = Check(
    title="the nodes' names mean the same addresses everywhere",
    tier="static",
    why="A node that knows another by a wrong address waits for a master that never comes; MPI, "
    "pdsh and hostfiles go by names alone.",
    fix="the same DNS or /etc/hosts on all nodes; or `address:` for the node in the cluster file",
    see="getent ahosts NODE",
    source="getaddrinfo(3); DeepSpeed hostfile, Open MPI hostfile",
    ask=_ask,
    here=_here,
    compare=_compare,
)
