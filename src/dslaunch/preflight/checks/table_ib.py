"""Checks of InfiniBand and RoCE: what the kernel reports of RDMA devices and their ports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from dslaunch.plural import counted
from dslaunch.preflight import kernel_log
from dslaunch.preflight.alike import judge_alike
from dslaunch.preflight.check import (
    Check,
    Finding,
    Level,
    NodeAnswers,
    Nodes,
    Question,
    UnansweredError,
    passed,
    skipped,
)
from dslaunch.preflight.checks import _infiniband as infiniband
from dslaunch.preflight.checks._infiniband import Device, Port
from dslaunch.preflight.flow import NodeFlow, compared, each, judged, together

VERBS = Question(
    "run",
    {
        "shell": "for file in /dev/infiniband/uverbs*; do [ -e $file ] || continue; "
        "if [ -r $file ] && [ -w $file ]; then echo usable; else echo denied; fi; done"
    },
    5,
)


def _flow_ib_devices(a: NodeAnswers) -> NodeFlow:
    devices = infiniband.devices(a)
    if devices:
        a = yield {"verbs": VERBS}
    used = [name for name, device in devices.items() if device.active]
    if not used:
        return [skipped("no active InfiniBand or RoCE NIC")]
    answer = a.value(VERBS)
    if answer["code"]:
        raise UnansweredError(f"/dev/infiniband cannot be read: {answer['err'][:80]}")
    words = answer["out"].split()
    cards = counted(len(used), "active card")
    if not words:
        return [Finding("fail", f"{cards}, but no device in /dev/infiniband", "uverbs devices")]
    if "usable" not in words:
        fix = (
            "give the user's group read and write permission for /dev/infiniband/uverbs* "
            "(rdma-core's udev rules)"
        )
        return [
            Finding(
                "fail", f"{cards}, but no permission to use them", "read and write permission", fix
            )
        ]
    return []


_PORTS = "/sys/class/infiniband/*/ports/*"
GIDS = Question(
    "read", [f"{_PORTS}/{of}/{i}" for of in ("gids", "gid_attrs/types") for i in range(10)]
)
"""The first ten of up to 256: what a port has for its own addresses comes first."""
_GID = re.compile(
    r"^/sys/class/infiniband/([^/]+)/ports/(\d{1,9})/(gids|gid_attrs/types)/(\d{1,9})$"
)
_IPV4 = "0000:0000:0000:0000:0000:ffff:"


def usable_gids(files: Mapping[str, str]) -> dict[tuple[str, int], list[int]]:
    """By device and port, the indices of RoCE v2 addresses that stand for IPv4."""
    gids: dict[tuple[str, int], dict[int, str]] = {}
    kinds: dict[tuple[str, int], dict[int, str]] = {}
    for path, text in files.items():
        if at := _GID.match(path):
            into = gids if at[3] == "gids" else kinds
            into.setdefault((at[1], int(at[2])), {})[int(at[4])] = text.strip()
    return {
        port: [
            index
            for index, gid in sorted(of.items())
            if gid.startswith(_IPV4) and kinds.get(port, {}).get(index) == "RoCE v2"
        ]
        for port, of in gids.items()
    }


def _flow_ib_gid(a: NodeAnswers) -> NodeFlow:
    ethernet = [port for port in infiniband.ports(a) if port.ethernet]
    if ethernet:
        a = yield {"gids": GIDS}
    roce = [port for port in ethernet if port.state == "ACTIVE"]
    if not roce:
        return [skipped("no RoCE")]
    found = usable_gids(a.value(GIDS))
    without = [port.name for port in roce if not found.get((port.device, port.number))]
    if len(without) == len(roce):
        words = f"{infiniband.named(without)}: no RoCE v2 GID for IPv4"
        return [Finding("warn", words, "one")]
    if without:
        return [Finding("info", f"{infiniband.named(without)}: no RoCE v2 GID for IPv4")]
    indices = sorted({of[0] for port, of in found.items() if of})
    return [passed(f"RoCE v2 GID at index {', '.join(map(str, indices))}")]


_DOWN = re.compile(
    r"^\[\s*(?P<time>\d+\.\d+)\].*?"
    r"(?<![\w.])(?P<device>(?:mlx|bnxt|irdma|ionic|ib|ens|enp|eth)[\w.]{0,60})"
    r"(?:: |:? Port: \d+ )?(?:[Ll]ink (?:DOWN|[Dd]own)|Lost carrier)",
    re.MULTILINE,
)
STARTING = 600.0
"""Seconds after a node's start in which links come and go."""


def flaps(text: str, hours: float) -> Counter[str]:
    """How often each device lost its link, by the kernel's log."""
    since = max(STARTING, kernel_log.since(text, hours))
    return Counter(m["device"] for m in _DOWN.finditer(text) if float(m["time"]) >= since)


def _flow_ib_link_flap(a: NodeAnswers) -> NodeFlow:
    if infiniband.devices(a):
        a = yield {"kernel": kernel_log.LOG}
    if not infiniband.in_use(a):
        return [skipped("no active InfiniBand or RoCE NIC")]
    return _ib_link_flap(a)


def _ib_link_flap(a: NodeAnswers) -> Iterator[Finding]:
    found = infiniband.devices(a)
    nets = {path.split("/")[-2] for path in infiniband.files(a) if "/device/net/" in path}
    counts = {
        name: times
        for name, times in flaps(kernel_log.log(a), a.limits["hours"]).items()
        if name in found or name in nets
    }
    for name, times in counts.items():
        words = f"{name}: link down {counted(times, 'time')}"
        yield Finding("fail" if times >= a.limits["fail"] else "warn", words, "never")


def _ib_pcie(a: NodeAnswers) -> Iterator[Finding]:
    used = [device for device in infiniband.devices(a).values() if device.active]
    told = [device for device in used if _link_number(device, "max_link_width")]
    groups: dict[tuple[Level, str], list[str]] = {}
    for device in told:
        if said := _limited(device):
            groups.setdefault(said, []).append(device.name)
    for (level, words), names in groups.items():
        yield Finding(level, f"{infiniband.named(names)}: {words}", "the NIC's full PCIe link")
    if not groups:
        yield passed("full PCIe link") if told else skipped("no active InfiniBand or RoCE NIC")


def _limited(device: Device) -> tuple[Level, str] | None:
    now, most = _link_number(device, "current_link_width"), _link_number(device, "max_link_width")
    if now and most and now < most:
        return "fail", f"{now:.0f} of {most:.0f} PCIe lanes"
    now, most = _link_number(device, "current_link_speed"), _link_number(device, "max_link_speed")
    if now and most and now < most:
        return "warn", f"{now:g} of {most:g} GT/s PCIe"
    return None


def _link_number(device: Device, name: str) -> float | None:
    """The kernel writes `255` or `Unknown` for what it does not know, of virtual functions too."""
    found = re.match(r"(\d{1,9}(?:\.\d{1,9})?)\b", device.fields.get(name, ""))
    return float(found[1]) if found and 0 < float(found[1]) < 255 else None


NO_MANAGER = "start or repair the subnet manager (`sminfo`); check the partition key"
NO_LINK = (
    "check the cable and the transceiver; if the port is not meant to be used, "
    "leave it out of NCCL_IB_HCA"
)


def _compare_ib_port_state(nodes: Nodes) -> Iterator[Finding]:
    """A port that is active on most nodes must be active on all; a port that no node uses is
    information."""
    found = judge_alike(nodes, infiniband.reported_ports)
    states: Counter[tuple[str, bool]] = Counter()
    for hosts, ports in found:
        for port in ports or ():
            states[port.name, _up(port)] += len(hosts)
    usual = {name for (name, up), times in states.items() if up and times * 2 > len(nodes)}
    yield from together(nodes, ((hosts, [*_port_states(of, states, usual)]) for hosts, of in found))


def _port_states(
    ports: tuple[Port, ...] | None, states: Counter[tuple[str, bool]], usual: set[str]
) -> Iterator[Finding]:
    """Yield what is found on a node. `states`: on how many nodes a port is up, and is not. `usual`:
    the ports that are up on most nodes."""
    if ports is None:
        yield Finding("unknown", "ports not reported")
        return
    missing = usual - {port.name for port in ports}
    # where names differ, the number tells whether one is missing
    if missing and sum(map(_up, ports)) < len(usual):
        words = f"{infiniband.named(missing)} not found"
        fix = "check `lspci -d 15b3:` and `dmesg`; load the driver; reseat the NIC"
        yield Finding("fail", words, "as on most nodes", fix)
    wrong = [port for port in ports if not _up(port)]
    bad = [port for port in wrong if _should_be_up(port, states)]
    yield from _ports_down(bad, wrong)
    if ports and not bad:
        yield passed(f"{counted(sum(map(_up, ports)), 'port')} active")


def _should_be_up(port: Port, states: Counter[tuple[str, bool]]) -> bool:
    waits = port.physical == "LinkUp" and port.state in ("INIT", "ARMED")
    return waits or states[port.name, True] > states[port.name, False]


def _ports_down(bad: list[Port], wrong: list[Port]) -> Iterator[Finding]:
    for level, of in (("fail", bad), ("info", [port for port in wrong if port not in bad])):
        groups: dict[str, list[Port]] = {}
        for port in of:
            state = f"{port.state or 'unknown'} ({port.physical or 'unknown'})"
            groups.setdefault(state, []).append(port)
        for state, those in groups.items():
            words = f"{infiniband.named(port.name for port in those)}: {state}"
            if level == "info":
                yield Finding("info", words)
            else:
                fix = NO_MANAGER if those[0].physical == "LinkUp" else NO_LINK
                yield Finding("fail", words, "ACTIVE (LinkUp)", fix)


def _up(port: Port) -> bool:
    return port.state == "ACTIVE"


CHECKS = {
    "ib.devices": Check(
        title="InfiniBand and RoCE devices are accessible",
        why=(
            "Without the devices, as in a container without --device, NCCL silently uses "
            "sockets: all-reduce is ten times slower."
        ),
        flow=each(_flow_ib_devices, infiniband.ask, fine="devices accessible"),
        fix=(
            "load ib_uverbs; run `docker run --device=/dev/infiniband --cap-add IPC_LOCK "
            "--ulimit memlock=-1`"
        ),
        see="ls -l /dev/infiniband",
        source="AzureHPC health checks; NVIDIA NCCL documentation, docker",
    ),
    "ib.gid": Check(
        title="RoCE ports have a RoCE v2 GID",
        why=(
            "NCCL connects by the GID of a port's IPv4 address; without it the training "
            "hangs while it connects."
        ),
        fix=(
            "assign an IPv4 address to the port's interface and bring it up; NCCL before "
            "2.21 needs NCCL_IB_GID_INDEX too"
        ),
        see="show_gids",
        source="NCCL documentation, NCCL_IB_GID_INDEX and NCCL_IB_ROCE_VERSION_NUM",
        flow=each(_flow_ib_gid, infiniband.ask),
    ),
    "ib.link-flap": Check(
        title="InfiniBand and RoCE links are stable",
        why=(
            "A flapping link ends a training with an NCCL timeout. Cables and switches "
            "were 8 % of the interruptions of Llama 3 405B. The NIC's own counter is not "
            "used: it has 8 bits, and stays at 255."
        ),
        flow=each(_flow_ib_link_flap, infiniband.ask, fine="no link flaps"),
        fix="reseat or replace the cable and transceiver at both ends",
        see="sudo dmesg -T | grep -i 'link down'",
        source="AzureHPC health checks (5 in 24 hours); The Llama 3 Herd of Models, 2024, table 5",
        limits={"hours": 24, "fail": 5},
        limits_mean=(
            "hours back in the log to look for errors; link losses of a device at which it fails"
        ),
    ),
    "ib.pcie": Check(
        title="InfiniBand and RoCE NICs have their full PCIe link",
        why=(
            "A NIC in a slot with half the lanes reports its full rate, and transfers "
            "half of it: all nodes wait for this one."
        ),
        fix="reseat the NIC; check the slot's bifurcation and link speed in the BIOS",
        see="sudo dmesg | grep 'available PCIe bandwidth'",
        source="imbue-ai/cluster-health; Linux, Documentation/ABI/testing/sysfs-bus-pci",
        flow=judged(_ib_pcie, infiniband.ask),
    ),
    "ib.port-state": Check(
        title="InfiniBand and RoCE ports are active",
        why=(
            "NCCL silently ignores a port that is not active: the training is slower, "
            "uses Ethernet, or hangs while it connects."
        ),
        fix=NO_LINK,
        see="grep . /sys/class/infiniband/*/ports/*/state "
        "/sys/class/infiniband/*/ports/*/phys_state",
        source="Linux, Documentation/ABI/stable/sysfs-class-infiniband; imbue-ai/cluster-health",
        flow=compared(_compare_ib_port_state, infiniband.ask),
    ),
}
