"""Whether the nodes are machines of their own."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Check, Nodes, Question, Verdict
from dslaunch.preflight.checks._machine import CONTAINER

MACHINE_ID = Question("read", ["/etc/machine-id"])


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    if any(a.scope.cluster.same_machine for a in nodes.values()):
        yield Verdict("skip", "emulated nodes are one machine", hosts=tuple(nodes))
        return
    same = _groups({h: f"{a.hello['boot']} {a.hello['network']}" for h, a in nodes.items()})
    for hosts in same:
        others = f"{', '.join(hosts)} are one machine"
        fix = "leave all but one of them out: its GPUs would be counted twice"
        yield Verdict(
            "fail", others, "a machine each", fix, "cat /proc/sys/kernel/random/boot_id", hosts
        )
    cloned = [hosts for hosts in _groups(_ids(nodes)) if hosts not in same]
    for hosts in cloned:
        yield Verdict(
            "warn", "it has the machine-id of another node", "one of its own", hosts=hosts
        )
    odd = {host for hosts in (*same, *cloned) for host in hosts}
    fine = tuple(host for host in nodes if host not in odd)
    if fine:
        yield Verdict("pass", "a machine of its own", hosts=fine)


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


CHECK = Check(
    title="every node is a machine of its own",
    tier="gate",
    why="Two names of one machine put twice the ranks on its GPUs. Images cloned with their "
    "machine-id get each other's addresses from DHCP, and one identity in logs and monitoring.",
    fix="`rm /etc/machine-id && systemd-machine-id-setup` there, then boot",
    see="cat /etc/machine-id",
    source="machine-id(5); torch 2.13 elastic/rendezvous/dynamic_rendezvous.py (_NodeDesc)",
    ask=lambda scope: {"id": MACHINE_ID, "in": CONTAINER},
    compare=_compare,
)
