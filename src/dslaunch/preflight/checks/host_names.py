"""What the nodes call themselves, and which addresses those names have."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from dslaunch.preflight.check import (
    Answers,
    Check,
    Level,
    Nodes,
    Question,
    Verdict,
    passed,
    skipped,
)  # fmt: skip
from dslaunch.registry import LAUNCHERS


def _judge(a: Answers) -> Iterator[Verdict]:
    if len(a.scope.cluster.nodes) < 2 or a.scope.cluster.same_machine:
        yield skipped("nobody calls it by that name")
        return
    names = a["names"]
    addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in names["addresses"]]
    if not addresses:
        yield Verdict("warn", "its own name has no address there", "its address on the network")
    elif all(address.is_loopback for address in addresses):
        launcher = LAUNCHERS.find(a.scope.launcher)
        by_name = launcher is not None and launcher.uses_host_name
        level: Level = "fail" if by_name else "warn"
        yield Verdict(
            level,
            f"its own name is {addresses[0]} there",
            "its address on the network",
            see="getent ahosts $(hostname)",
        )
    else:
        yield passed("own name has an address on the network")


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    """Two nodes of one name: torch's elastic agents take them for one (`_NodeDesc`)."""
    named: dict[str, list[str]] = {}
    for host, a in nodes.items():
        if a.has("names") and not a.scope.cluster.same_machine:
            named.setdefault(a["names"]["fqdn"], []).append(host)
    for name, hosts in named.items():
        if len(hosts) > 1:
            yield Verdict(
                "warn",
                f"several nodes call themselves {name}",
                "a name of its own for each",
                "give each its own with `hostnamectl set-hostname`",
                "hostname -f",
                tuple(hosts),
            )


CHECK = Check(
    title="nodes have names of their own, with addresses others can reach",
    tier="gate",
    why="Debian's installer maps a machine's own name to 127.0.1.1. torchrun's c10d rendezvous "
    "then starts no store anywhere and fails after two minutes, and gloo listens where nobody "
    "can call it. dslaunch passes addresses and interfaces explicitly; other launchers do not.",
    fix="let /etc/hosts give the node's name its real address, not 127.0.1.1",
    see="getent ahosts $(hostname)",
    source="torch 2.13 elastic/rendezvous/utils.py (_matches_machine_hostname); pytorch/gloo#223",
    ask=lambda scope: {"names": Question("names")},
    judge=_judge,
    compare=_compare,
)
