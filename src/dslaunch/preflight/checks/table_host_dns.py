"""Checks of the nodes' names and identities."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from dslaunch.preflight.check import (
    QUESTION_TIMEOUT,
    Asked,
    Check,
    Finding,
    Flow,
    Level,
    NodeAnswers,
    Nodes,
    Question,
    Round,
    Scope,
    UnansweredError,
    skipped,
)
from dslaunch.preflight.checks._machine import CONTAINER, resolve
from dslaunch.preflight.comparison import read_of_answering
from dslaunch.preflight.flow import compared, judged
from dslaunch.preflight.unanswered import UnansweredReason
from dslaunch.registry import LAUNCHERS

Names = Mapping[str, list[str]]
Addresses = frozenset[str]


def _here(scope: Scope) -> Asked:
    """Return the question to this machine. Names that exist in ~/.ssh/config only have no answer
    from a name server: the timeout is short."""
    return {"names": Question("resolve", [node.host for node in scope.nodes], timeout=3)}


def _flow_dns_resolve(scope: Scope) -> Flow:
    nodes = yield Round.of_all(scope, {"names": resolve(scope)}, here=_here(scope))
    return _compare_dns_resolve(nodes)


def _compare_dns_resolve(nodes: Nodes) -> Iterator[Finding]:
    said: dict[str, Names] = read_of_answering(nodes, lambda a: a["names"])
    scope = next(iter(nodes.values())).scope
    needed = "mpi" in scope.purposes
    slow = tuple(host for host in nodes if host not in said and _timed_out(nodes[host]))
    every_address = all(node.address is not None for node in scope.nodes)
    if slow:
        yield Finding(
            _level(every_address, needed=needed),
            f"does not resolve the nodes' names within {QUESTION_TIMEOUT:g} s",
            "an answer within a second",
            fix="correct the name servers in /etc/resolv.conf, or add the nodes to /etc/hosts",
            see="time getent ahosts NODE",
            hosts=slow,
        )
    unknown = tuple(host for host in nodes if host not in said and host not in slow)
    yield Finding("unknown", "not asked for the nodes' names", hosts=unknown)
    asked = {host: _others(scope, host) for host in said}
    none = _resolving_none(said, asked)
    by_name = _by_name({host: said[host] for host in said if host not in none}, asked)
    findings: list[Finding] = []
    if none and (needed or _resolves_any(by_name)):
        findings.append(
            Finding(
                _level(every_address, needed=needed),
                "resolves no name of the other nodes",
                "their addresses",
                hosts=none,
            )
        )
    for node in scope.nodes:
        level = _level(node.address is not None, needed=needed)
        findings += _known_as(node.host, by_name.get(node.host, {}), level, needed=needed)
    yield from findings
    odd = {host for finding in findings if finding.level != "info" for host in finding.hosts}
    fine = tuple(host for host in said if host not in odd)
    yield Finding("pass", "resolves the nodes' names like the other nodes", hosts=fine)
    yield from _seen_here(scope, nodes, by_name)


def _timed_out(a: NodeAnswers) -> bool:
    """Return whether the name servers of a node did not answer in time."""
    return a.reason(a.asked["names"]) is UnansweredReason.TIMEOUT


def _level(has_address: bool, *, needed: bool) -> Level:
    """Return how bad it is if a name is not resolved: without effect on ranks where the cluster
    file has the address, unless the names themselves are `needed`."""
    if needed:
        return "fail"
    return "info" if has_address else "warn"


def _others(scope: Scope, host: str) -> list[str]:
    """Return the names of other nodes that a node was asked for; `host.names` judges its own."""
    return [name for name in resolve(scope).of[host].argument if name != host]


def _resolving_none(
    said: Mapping[str, Names], asked: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Return the nodes that resolve none of several names: one broken resolver is one problem, and
    not one for each name."""
    return tuple(
        host
        for host, names in said.items()
        if len(asked[host]) > 1 and not any(names.get(name) for name in asked[host])
    )


def _resolves_any(by_name: Mapping[str, Mapping[str, Addresses]]) -> bool:
    return any(addresses for found in by_name.values() for addresses in found.values())


def _by_name(
    said: Mapping[str, Names], asked: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Addresses]]:
    """Return the addresses of each name on each other node that was asked for it; none where the
    name does not resolve."""
    found: dict[str, dict[str, Addresses]] = {}
    known: dict[tuple[str, ...], Addresses] = {}
    """Most nodes resolve a name to the same addresses: they share one set."""
    for host, names in said.items():
        for name in asked[host]:
            listed = tuple(names.get(name, ()))
            addresses = known.get(listed)
            if addresses is None:
                addresses = known[listed] = frozenset(listed)
            found.setdefault(name, {})[host] = addresses
    return found


def _known_as(
    name: str, found: Mapping[str, Addresses], bad: Level, *, needed: bool
) -> Iterator[Finding]:
    """Yield how the other nodes resolve a name. `needed`: each of them has to."""
    if len(set(found.values())) == 1 and _is_usual(next(iter(found.values()))):
        return  # as with most names
    none = tuple(host for host, addresses in found.items() if not addresses)
    loop = tuple(
        host for host, addresses in found.items() if addresses and all(map(_loop, addresses))
    )
    if loop:
        yield Finding(bad, f"{name} resolves to a loopback address", "its address", hosts=loop)
    if none and (len(none) < len(found) or needed):
        yield Finding(
            bad, f"{name} does not resolve", "the address that other nodes resolve", hosts=none
        )
    without = {*none, *loop}
    good = {host: addresses for host, addresses in found.items() if host not in without}
    common = _most(good)
    other = tuple(host for host, addresses in good.items() if not addresses & common)
    if other:
        expected = f"{', '.join(sorted(common))}, as on the other nodes"
        yield Finding(bad, f"{name} resolves to another address", expected, hosts=other)


def _is_usual(addresses: Addresses) -> bool:
    return bool(addresses) and not any(map(_loop, addresses))


def _most(found: Mapping[str, Addresses]) -> Addresses:
    """The addresses that most have; with equal numbers the first."""
    counts = Counter(found.values())
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


def _seen_here(
    scope: Scope, nodes: Nodes, by_name: Mapping[str, Mapping[str, Addresses]]
) -> Iterator[Finding]:
    """This machine may be in another network and resolve other addresses correctly: information
    only."""
    first = next(iter(nodes.values()))
    try:
        here: Names = first.from_here(_here(scope)["names"])
    except UnansweredError:
        return
    odd = []
    for name in nodes:
        there = frozenset().union(*by_name.get(name, {}).values())
        if there and here.get(name) and not there & set(here[name]):
            odd.append(name)
    if odd:
        yield Finding("info", "resolves to another address on this machine", hosts=tuple(odd))


def _host_names(a: NodeAnswers) -> Iterator[Finding]:
    if len(a.scope.cluster.nodes) < 2 or a.scope.cluster.same_machine:
        yield skipped("no other node uses its host name")
        return
    names = a["names"]
    addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in names["addresses"]]
    if not addresses:
        yield Finding("warn", "its own host name does not resolve", "its address on the network")
    elif all(address.is_loopback for address in addresses):
        launcher = LAUNCHERS.find(a.scope.launcher)
        by_name = launcher is not None and launcher.uses_host_name
        level: Level = "fail" if by_name else "warn"
        yield Finding(
            level,
            f"its own host name resolves to {addresses[0]}",
            "its address on the network",
            see="getent ahosts $(hostname)",
        )


def _compare_host_names(nodes: Nodes) -> Iterator[Finding]:
    """Two nodes of one name: torch's elastic agents take them for one (`_NodeDesc`)."""
    if _same_machine(nodes):
        return
    names = read_of_answering(nodes, lambda a: str(a["names"]["fqdn"]))
    for hosts in _groups(names):
        yield Finding(
            "warn",
            f"several nodes have the host name {names[hosts[0]]}",
            "a unique host name",
            fix="run `hostnamectl set-hostname NAME` on each",
            see="hostname -f",
            hosts=hosts,
        )


def _same_machine(nodes: Nodes) -> bool:
    return next(iter(nodes.values())).scope.cluster.same_machine


MACHINE_ID = Question("read", ["/etc/machine-id"])


def _compare_host_unique(nodes: Nodes) -> Iterator[Finding]:
    if _same_machine(nodes):
        yield Finding("skip", "emulated nodes share one machine", hosts=tuple(nodes))
        return
    same = _groups({h: f"{a.hello['boot']} {a.hello['network']}" for h, a in nodes.items()})
    for hosts in same:
        others = f"{', '.join(hosts)} are the same machine"
        fix = "exclude all but one of them: its GPUs would be used twice"
        see = "cat /proc/sys/kernel/random/boot_id"
        yield Finding("fail", others, "a machine each", fix, see, hosts=hosts)
    cloned = [hosts for hosts in _groups(_ids(nodes)) if hosts not in same]
    for hosts in cloned:
        yield Finding("warn", "same machine-id as another node", "a unique machine-id", hosts=hosts)
    odd = {host for hosts in (*same, *cloned) for host in hosts}
    fine = tuple(host for host in nodes if host not in odd)
    yield Finding("pass", "unique machine", hosts=fine)


def _ids(nodes: Nodes) -> dict[str, str]:
    """The machine-ids."""
    found = read_of_answering(nodes, _machine_id)
    return {host: machine_id for host, machine_id in found.items() if machine_id}


def _machine_id(a: NodeAnswers) -> str:
    """Return the machine-id; empty: it has none, or is a container, which has its image's."""
    in_container = a.has("in") and a["in"]
    return "" if in_container else a["id"].get("/etc/machine-id", "")


def _groups(values: dict[str, str]) -> list[tuple[str, ...]]:
    """Hosts that have a value in common."""
    groups: dict[str, list[str]] = {}
    for host, value in values.items():
        groups.setdefault(value, []).append(host)
    return [tuple(hosts) for hosts in groups.values() if len(hosts) > 1]


CHECKS = {
    "dns.resolve": Check(
        title="all nodes resolve the nodes' names equally",
        why=(
            "A node that resolves another one's name to a wrong address waits for a "
            "master that it never reaches; MPI, pdsh and hostfiles use names only."
        ),
        fix=(
            "use the same DNS or /etc/hosts on all nodes; or set `address:` of the node "
            "in the cluster file"
        ),
        see="getent ahosts NODE",
        source="getaddrinfo(3); DeepSpeed hostfile, Open MPI hostfile",
        flow=_flow_dns_resolve,
    ),
    "host.names": Check(
        title="host names resolve to reachable addresses",
        tier="gate",
        why=(
            "Debian's installer maps a machine's own name to 127.0.1.1. torchrun's c10d "
            "rendezvous then starts no store on any node and fails after two minutes, "
            "and gloo listens on an address that no other node reaches. dslaunch passes "
            "addresses and interfaces explicitly; other launchers do not."
        ),
        flow=judged(
            _host_names,
            lambda scope: {"names": Question("names")},
            fine="own host name resolves to an address on the network",
            compare=_compare_host_names,
        ),
        fix="map the node's name to its network address in /etc/hosts, not to 127.0.1.1",
        see="getent ahosts $(hostname)",
        source="torch 2.13 elastic/rendezvous/utils.py (_matches_machine_hostname); "
        "pytorch/gloo#223",
    ),
    "host.unique": Check(
        title="every node is a separate machine",
        tier="gate",
        why=(
            "Two names of one machine put twice the ranks on its GPUs. Images cloned "
            "with their machine-id get the same addresses from DHCP, and share one "
            "identity in logs and monitoring."
        ),
        fix=("run `rm /etc/machine-id && systemd-machine-id-setup` on the node, then reboot"),
        see="cat /etc/machine-id",
        source="machine-id(5); torch 2.13 elastic/rendezvous/dynamic_rendezvous.py (_NodeDesc)",
        flow=compared(_compare_host_unique, lambda scope: {"id": MACHINE_ID, "in": CONTAINER}),
    ),
}
