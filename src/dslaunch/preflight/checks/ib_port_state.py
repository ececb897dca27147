"""Whether InfiniBand and RoCE ports are up that should be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dslaunch.plural import counted
from dslaunch.preflight.check import Check, Nodes, Verdict
from dslaunch.preflight.checks import _infiniband as infiniband
from dslaunch.preflight.checks._infiniband import Port

NO_MANAGER = "start or mend the subnet manager (`sminfo`); see the partition key"
NO_LINK = "see the cable and the transceiver; if it is not to be used, leave it out of NCCL_IB_HCA"


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    """A port that is up on most nodes is to be up on all; one that nobody uses is only told of."""
    found = {host: infiniband.ports(a) for host, a in infiniband.with_devices(nodes).items()}
    states = Counter((p.name, p.state == "ACTIVE") for of in found.values() for p in of)
    yield from _without(nodes, found)
    for host, of in found.items():
        wrong = [port for port in of if port.state != "ACTIVE"]
        bad = [port for port in wrong if _should(port, states)]
        yield from _told(host, bad, wrong)
        if not bad:
            active = sum(port.state == "ACTIVE" for port in of)
            words = f"{counted(active, 'port')} active"
            yield Verdict("pass", words, hosts=(host,))


def _should(port: Port, states: Counter[tuple[str, bool]]) -> bool:
    waits = port.physical == "LinkUp" and port.state in ("INIT", "ARMED")
    return waits or states[port.name, True] > states[port.name, False]


def _told(host: str, bad: list[Port], wrong: list[Port]) -> Iterator[Verdict]:
    for level, of in (("fail", bad), ("info", [port for port in wrong if port not in bad])):
        groups: dict[str, list[Port]] = {}
        for port in of:
            state = f"{port.state or 'unknown'} ({port.physical or 'unknown'})"
            groups.setdefault(state, []).append(port)
        for state, those in groups.items():
            words = f"{infiniband.named(port.name for port in those)}: {state}"
            if level == "info":
                yield Verdict("info", words, hosts=(host,))
            else:
                fix = NO_MANAGER if those[0].physical == "LinkUp" else NO_LINK
                yield Verdict("fail", words, "ACTIVE (LinkUp)", fix, hosts=(host,))


def _without(nodes: Nodes, found: dict[str, tuple[Port, ...]]) -> Iterator[Verdict]:
    """Nodes that lack a device that most have up."""
    having = Counter(name for of in found.values() for name in {p.name for p in of if _up(p)})
    usual = {name for name, times in having.items() if times * 2 > len(nodes)}
    for host, a in nodes.items():
        if not a.has("ports"):
            yield Verdict("unknown", "its ports could not be read", hosts=(host,))
            continue
        missing = usual - {port.name for port in found.get(host, ())}
        # where names differ, the number tells whether one is missing
        if missing and sum(map(_up, found.get(host, ()))) < len(usual):
            words = f"no {infiniband.named(missing)}"
            fix = "see `lspci -d 15b3:` and `dmesg`; load the driver; reseat the card"
            yield Verdict("fail", words, "as most nodes have", fix, hosts=(host,))


def _up(port: Port) -> bool:
    return port.state == "ACTIVE"


CHECK = Check(
    title="InfiniBand and RoCE ports are active",
    tier="static",
    why="NCCL leaves out a port that is not active without a word: the training is slower, or goes "
    "over Ethernet, or hangs while it connects.",
    fix=NO_LINK,
    see="grep . /sys/class/infiniband/*/ports/*/state /sys/class/infiniband/*/ports/*/phys_state",
    source="Linux, Documentation/ABI/stable/sysfs-class-infiniband; imbue-ai/cluster-health",
    ask=infiniband.ask,
    compare=_compare,
)
