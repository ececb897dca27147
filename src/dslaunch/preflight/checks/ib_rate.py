"""Whether InfiniBand and RoCE ports have their full rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dslaunch.preflight.check import Check, Nodes, Verdict
from dslaunch.preflight.checks import _infiniband as infiniband
from dslaunch.preflight.checks._infiniband import Port


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    """Each port with the same of the other nodes: the most common rate is the right one."""
    found = {
        host: [port for port in infiniband.ports(a) if port.state == "ACTIVE" and port.rate]
        for host, a in infiniband.with_devices(nodes).items()
    }
    rates = Counter((p.name, p.rate or 0.0) for of in found.values() for p in of)
    usual: dict[str, float] = {}
    for (name, rate), _ in sorted(rates.items(), key=lambda each: (-each[1], -each[0][1])):
        usual.setdefault(name, rate)
    for host, of in found.items():
        slow = [port for port in of if (port.rate or 0) < usual[port.name]]
        yield from _told(host, slow, usual)
        if of and not slow:
            yield Verdict("pass", "full rate", hosts=(host,))


def _told(host: str, slow: list[Port], usual: dict[str, float]) -> Iterator[Verdict]:
    groups: dict[tuple[float, str, float], list[str]] = {}
    for port in slow:
        groups.setdefault((port.rate or 0, port.mode, usual[port.name]), []).append(port.name)
    for (rate, mode, most), names in groups.items():
        words = f"{infiniband.named(names)}: {rate:g} Gb/s{f' ({mode})' if mode else ''}"
        yield Verdict("fail", words, f"{most:g} Gb/s as on most nodes", hosts=(host,))


CHECK = Check(
    title="InfiniBand and RoCE ports have their full rate",
    tier="static",
    why="A worn cable makes a port come up with fewer lanes or an older rate: all-reduce then runs "
    "at the rate of this one port.",
    fix="reseat or change the cable, at both ends",
    see="grep . /sys/class/infiniband/*/ports/*/rate",
    source="AzureHPC health checks; facebookresearch/gcm",
    ask=infiniband.ask,
    compare=_compare,
)
