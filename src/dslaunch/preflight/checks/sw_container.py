"""Whether all logins are into containers, or none is."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Check, Nodes, UnansweredError, Verdict, as_on, odd_ones
from dslaunch.preflight.checks._machine import CONTAINER


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    where: dict[str, str] = {}
    for host, a in nodes.items():
        try:
            where[host] = "in a container" if a["files"] else "not in a container"
        except UnansweredError as why:
            yield Verdict("unknown", str(why), hosts=(host,))
    odd: set[str] = set()
    for found, hosts, common, count in odd_ones(where):
        odd |= set(hosts)
        yield Verdict("warn", found, as_on(common, count), hosts=hosts)
    fine = tuple(host for host in where if host not in odd)
    if fine:
        yield Verdict("pass", where[fine[0]], hosts=fine)


CHECK = Check(
    title="all logins are into containers, or none is",
    tier="static",
    why="A node whose sshd runs beside the container has other packages, limits and paths.",
    fix="let the port of that node lead into the container, as on the others",
    see="ls /.dockerenv /run/.containerenv",
    source="docker and podman: /.dockerenv, /run/.containerenv",
    ask=lambda scope: {"files": CONTAINER},
    compare=_compare,
)
