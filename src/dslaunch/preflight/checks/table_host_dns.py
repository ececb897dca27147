"""Checks of the nodes' names and identities."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

from dslaunch.preflight.check import (
    Asked,
    Check,
    Finding,
    Level,
    NodeAnswers,
    Nodes,
    Question,
    Scope,
    UnansweredError,
    skipped,
)
from dslaunch.preflight.checks._machine import CONTAINER, resolve
from dslaunch.registry import LAUNCHERS

Names = Mapping[str, list[str]]


def _here(scope: Scope) -> Asked:
    """Names of ~/.ssh/config alone are asked of a name server in vain: nobody waits long for it."""
    return {"names": replace(resolve(scope), timeout=3)}


def _compare_dns_resolve(nodes: Nodes) -> Iterator[Finding]:
    said: dict[str, Names] = {h: a["names"] for h, a in nodes.items() if a.has("names")}
    for host in nodes.keys() - said.keys():
        yield Finding("unknown", "it was not asked, or its resolver did not answer", hosts=(host,))
    given = {node.host for a in nodes.values() for node in a.scope.nodes if node.address}
    odd: set[str] = set()
    for name in next(iter(nodes.values())).scope.nodes:
        for finding in _known_as(name.host, said, name.host in given, nodes):
            odd |= set(finding.hosts) if finding.level != "info" else set()
            yield finding
    fine = tuple(host for host in said if host not in odd)
    yield Finding("pass", "knows the nodes by the same addresses as the others", hosts=fine)
    yield from _seen_here(nodes, said)


def _known_as(name: str, said: Mapping[str, Names], given: bool, nodes: Nodes) -> Iterator[Finding]:
    """What the other nodes make of a name; its own node's answer is judged by `host.names`."""
    found = {host: set(names.get(name, ())) for host, names in said.items() if host != name}
    none = tuple(host for host, addresses in found.items() if not addresses)
    loop = tuple(
        host for host, addresses in found.items() if addresses and all(map(_loop, addresses))
    )
    needs = any("mpi" in a.scope.purposes for a in nodes.values())
    bad: Level = "info" if given else "warn"
    if needs:
        bad = "fail"
    if loop:
        yield Finding(bad, f"{name} is its own loopback there", "its address", hosts=loop)
    if none and (len(none) < len(found) or needs):
        yield Finding(bad, f"{name} has no address there", "the address others know", hosts=none)
    good = {h: addresses for h, addresses in found.items() if h not in (*none, *loop)}
    common = _most(good)
    other = tuple(host for host, addresses in good.items() if not addresses & common)
    if other:
        expected = f"{', '.join(sorted(common))}, as others have it"
        yield Finding(bad, f"{name} is another address there", expected, hosts=other)


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


def _seen_here(nodes: Nodes, said: Mapping[str, Names]) -> Iterator[Finding]:
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
        yield Finding("info", "this machine knows it by another address", hosts=tuple(odd))


def _host_names(a: NodeAnswers) -> Iterator[Finding]:
    if len(a.scope.cluster.nodes) < 2 or a.scope.cluster.same_machine:
        yield skipped("nobody calls it by that name")
        return
    names = a["names"]
    addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in names["addresses"]]
    if not addresses:
        yield Finding("warn", "its own name has no address there", "its address on the network")
    elif all(address.is_loopback for address in addresses):
        launcher = LAUNCHERS.find(a.scope.launcher)
        by_name = launcher is not None and launcher.uses_host_name
        level: Level = "fail" if by_name else "warn"
        yield Finding(
            level,
            f"its own name is {addresses[0]} there",
            "its address on the network",
            see="getent ahosts $(hostname)",
        )


def _compare_host_names(nodes: Nodes) -> Iterator[Finding]:
    """Two nodes of one name: torch's elastic agents take them for one (`_NodeDesc`)."""
    named: dict[str, list[str]] = {}
    for host, a in nodes.items():
        if a.has("names") and not a.scope.cluster.same_machine:
            named.setdefault(a["names"]["fqdn"], []).append(host)
    for name, hosts in named.items():
        if len(hosts) > 1:
            yield Finding(
                "warn",
                f"several nodes call themselves {name}",
                "a name of its own for each",
                fix="give each its own with `hostnamectl set-hostname`",
                see="hostname -f",
                hosts=tuple(hosts),
            )


MACHINE_ID = Question("read", ["/etc/machine-id"])


def _compare_host_unique(nodes: Nodes) -> Iterator[Finding]:
    if any(a.scope.cluster.same_machine for a in nodes.values()):
        yield Finding("skip", "emulated nodes are one machine", hosts=tuple(nodes))
        return
    same = _groups({h: f"{a.hello['boot']} {a.hello['network']}" for h, a in nodes.items()})
    for hosts in same:
        others = f"{', '.join(hosts)} are one machine"
        fix = "leave all but one of them out: its GPUs would be counted twice"
        see = "cat /proc/sys/kernel/random/boot_id"
        yield Finding("fail", others, "a machine each", fix, see, hosts=hosts)
    cloned = [hosts for hosts in _groups(_ids(nodes)) if hosts not in same]
    for hosts in cloned:
        yield Finding(
            "warn", "it has the machine-id of another node", "one of its own", hosts=hosts
        )
    odd = {host for hosts in (*same, *cloned) for host in hosts}
    fine = tuple(host for host in nodes if host not in odd)
    yield Finding("pass", "a machine of its own", hosts=fine)


def _ids(nodes: Nodes) -> dict[str, str]:
    """The machine-ids; containers have their image's, or none."""
    return {
        host: a["id"]["/etc/machine-id"]
        for host, a in nodes.items()
        if a.has("id") and a["id"].get("/etc/machine-id") and not (a.has("in") and a["in"])
    }


def _groups(values: dict[str, str]) -> list[tuple[str, ...]]:
    """Hosts that have a value in common."""
    groups: dict[str, list[str]] = {}
    for host, value in values.items():
        groups.setdefault(value, []).append(host)
    return [tuple(hosts) for hosts in groups.values() if len(hosts) > 1]


CHECKS = {
    "dns.resolve": Check(
        title="the nodes' names mean the same addresses everywhere",
        why="A node that knows another by a wrong address waits for a master that never comes; "
        "MPI, pdsh and hostfiles go by names alone.",
        fix="the same DNS or /etc/hosts on all nodes; or `address:` for the node in the cluster "
        "file",
        see="getent ahosts NODE",
        source="getaddrinfo(3); DeepSpeed hostfile, Open MPI hostfile",
        ask=lambda scope: {"names": resolve(scope)},
        here=_here,
        compare=_compare_dns_resolve,
    ),
    "host.names": Check(
        title="nodes have names of their own, with addresses others can reach",
        tier="gate",
        why="Debian's installer maps a machine's own name to 127.0.1.1. torchrun's c10d "
        "rendezvous then starts no store anywhere and fails after two minutes, and gloo listens "
        "where nobody can call it. dslaunch passes addresses and interfaces explicitly; other "
        "launchers do not.",
        fine="own name has an address on the network",
        fix="let /etc/hosts give the node's name its real address, not 127.0.1.1",
        see="getent ahosts $(hostname)",
        source="torch 2.13 elastic/rendezvous/utils.py (_matches_machine_hostname); "
        "pytorch/gloo#223",
        ask=lambda scope: {"names": Question("names")},
        judge=_host_names,
        compare=_compare_host_names,
    ),
    "host.unique": Check(
        title="every node is a machine of its own",
        tier="gate",
        why="Two names of one machine put twice the ranks on its GPUs. Images cloned with their "
        "machine-id get each other's addresses from DHCP, and one identity in logs and monitoring.",
        fix="`rm /etc/machine-id && systemd-machine-id-setup` there, then boot",
        see="cat /etc/machine-id",
        source="machine-id(5); torch 2.13 elastic/rendezvous/dynamic_rendezvous.py (_NodeDesc)",
        ask=lambda scope: {"id": MACHINE_ID, "in": CONTAINER},
        compare=_compare_host_unique,
    ),
}
