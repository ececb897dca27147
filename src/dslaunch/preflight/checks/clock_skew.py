"""Whether the nodes' clocks agree."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from dslaunch.preflight.check import Check, Nodes, Verdict
from dslaunch.registry import LAUNCHERS


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    """Against the middle one: our own clock may be the wrong one."""
    clocks = {host: a.clock for host, a in nodes.items() if a.clock is not None}
    for host in nodes.keys() - clocks.keys():
        yield Verdict("unknown", "its clock was not asked", hosts=(host,))
    middle = median(offset for offset, _ in clocks.values()) if clocks else 0.0
    for host, (offset, error) in clocks.items():
        yield _one(host, offset - middle, error, nodes)


def _one(host: str, ahead: float, error: float, nodes: Nodes) -> Verdict:
    a = nodes[host]
    launcher = LAUNCHERS.find(a.scope.launcher)
    by_clock = launcher is not None and launcher.compares_clocks
    limit = a.limits["elastic" if by_clock else "fail"]
    off = max(0.0, abs(ahead) - error)
    if off < a.limits["warn"]:
        return Verdict("pass", f"within {a.limits['warn']:g} s of each other", hosts=(host,))
    found = f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the other nodes"
    expected = f"less than {a.limits['warn']:g} s"
    return Verdict("fail" if off >= limit else "warn", found, expected, hosts=(host,))


CHECK = Check(
    title="the nodes' clocks agree",
    tier="gate",
    why="torchrun's c10d rendezvous drops nodes whose clock is 15 s off, without a word: a node "
    "may train alone and report success. Logs cannot be ordered; munge and Kerberos refuse at "
    "300 s.",
    fix="start chronyd or systemd-timesyncd there, and see that it reaches its servers",
    see="chronyc tracking || timedatectl",
    source="torch 2.13 elastic/rendezvous/dynamic_rendezvous.py (_sanitize: keep-alive 5 s x "
    "3); pytorch#76287",
    compare=_compare,
    limits={"warn": 1.0, "elastic": 10.0, "fail": 60.0},
    limits_mean="seconds from the middle of all nodes' clocks; `elastic` is for torchrun's c10d",
)
