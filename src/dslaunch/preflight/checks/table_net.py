"""Checks of a node's network: interface, speed, ports, firewall."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from dslaunch.preflight.check import (
    Check,
    Finding,
    Level,
    NodeAnswers,
    Question,
    Scope,
    passed,
    skipped,
)
from dslaunch.preflight.checks._machine import (
    INFINIBAND,
    INTERFACES,
    NVIDIA,
    VIRTUAL,
    has_active_port,
    has_address,
    own_interface,
    resolve,
)
from dslaunch.preflight.comparison import alike
from dslaunch.preflight.flow import NodeFlow, each, judged
from dslaunch.protocol.survey import Ran

UFW = "/etc/ufw/ufw.conf"
UFW_FILES = Question("read", [UFW])
FIREWALLD = Question("present", ["/run/firewalld", "/run/firewalld.pid", "firewall-cmd"])
STATE = Question("run", {"argv": ["firewall-cmd", "--state"]}, 5)


def _flow_net_firewall(a: NodeAnswers) -> NodeFlow:
    firewalld = a["firewalld"]
    running = False
    if "firewall-cmd" in firewalld and len(firewalld) > 1:
        a = yield {"state": STATE}
        running = a.value(STATE)["out"].strip() == "running"
    ufw = "ENABLED=yes" in a["files"].get(UFW, "").replace('"', "")
    if ufw or running:
        name = "ufw" if ufw else "firewalld"
        return [Finding("info", f"{name} is running; see net.mesh for what it blocks")]
    return []


ROUTES = Question("read", ["/proc/net/route"])


def _net_interface(a: NodeAnswers) -> Iterator[Finding]:
    if a.scope.cluster.same_machine:
        yield skipped("emulated nodes share one machine")
        return
    own = own_interface(a)
    if not has_address(a):
        words = "no address that other nodes can reach"
        yield Finding(
            "fail" if len(a.scope.nodes) > 1 else "info", words, "an interface that is up"
        )
        return
    if own is None:
        words = "its address is on none of its interfaces"
        yield Finding(
            "warn", words, "an address of the node: NCCL and gloo send it to the other ranks"
        )
    elif own.name.startswith(VIRTUAL):
        yield Finding(
            "warn", f"its address is on {own.name}, a virtual interface", "a real interface"
        )
    elif not own.up:
        yield Finding("fail", f"{own.name} is down", "up")
    elif own.link_local:
        yield Finding("warn", f"its address on {own.name} is link-local", "a routed address")
    else:
        yield passed(f"its address is on {own.name}")
    outward = _default_route(a["routes"].get(ROUTES.argument[0], ""))
    if outward.startswith(VIRTUAL):
        yield Finding("warn", f"the default route uses {outward}", "a real interface")


@lru_cache(maxsize=256)
def _default_route(text: str) -> str:
    """The interface of the default route with the least metric; proc(5), /proc/net/route."""
    rows = [line.split() for line in text.splitlines()[1:]]
    found = [
        (int(r[6]), r[0])
        for r in rows
        if len(r) > 7 and r[1] == r[7] == "00000000" and re.fullmatch("[0-9]{1,9}", r[6])
    ]
    return min(found, default=(0, ""))[1]


def _interface_name(a: NodeAnswers) -> str | None:
    own = own_interface(a)
    return own.name if own is not None else None


USUAL = 29500
"""The default of torchrun and DeepSpeed (torch 2.13, DeepSpeed 0.19)."""


def _port(scope: Scope) -> int:
    return scope.cluster.network.master_port or USUAL


def _listen(scope: Scope) -> Question:
    return Question("listen", {"ports": [_port(scope)], "token": scope.token})


def _owner(scope: Scope) -> Question:
    return Question("run", {"argv": ["ss", "-Hltnp", f"sport = :{_port(scope)}"]}, 5)


def _flow_net_port(a: NodeAnswers) -> NodeFlow:
    """Of the first node, where the meeting place will be."""
    if a.scope.nodes[0].host != a.host:
        return []
    port = _port(a.scope)
    if a["listen"]["port"] is not None:
        return [passed(f"port {port} is free")]
    question = _owner(a.scope)
    a = yield {"owner": question}
    words = f"port {port} is in use{_owner_named(a.found(question))}"
    if a.scope.cluster.network.master_port:
        return [Finding("fail", words, "a free port")]
    return [Finding("info", f"{words}; dslaunch will choose another one")]


def _owner_named(answer: Ran | None) -> str:
    found = re.search(r'\("([^"]{1,40})",pid=\d{1,10}', answer["out"] if answer else "")
    return f" by {found[1]}" if found else ""


RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"
PORT_FILES = Question("read", [RANGE, RESERVED])


def _net_port_range(a: NodeAnswers) -> Iterator[Finding]:
    found = re.fullmatch(r"(\d{1,5})\s+(\d{1,5})", a["files"].get(RANGE, "").strip())
    if not found:
        yield Finding("unknown", "local port range not reported")
        return
    low, high = int(found[1]), int(found[2])
    port = a.scope.cluster.network.master_port or USUAL
    reserved = re.findall(r"(\d{1,5})(?:-(\d{1,5}))?", a["files"].get(RESERVED, ""))
    kept = any(int(first) <= port <= int(last or first) for first, last in reserved)
    if high - low + 1 < a.limits["warn"]:
        words = f"ports {low} to {high} for outgoing connections"
        yield Finding(
            "warn",
            words,
            f"{a.limits['warn']:g}",
            "run `sysctl -w net.ipv4.ip_local_port_range='32768 60999'`",
        )
    if low <= port <= high and not kept:
        yield Finding(
            "warn", f"port {port} is in the range of outgoing connections", "a reserved port"
        )


def _net_speed(a: NodeAnswers) -> Iterator[Finding]:
    own = own_interface(a)
    speed = own.speed if own else None
    if own is None or not speed:
        yield skipped("speed not reported by the driver")
        return
    words = f"{own.name}: {speed / 1000:g} Gbit/s"
    slow = len(a.scope.nodes) > 1 and bool(a["nvidia"]) and not has_active_port(a["infiniband"])
    level: Level = "warn" if speed / 1000 <= a.limits["warn"] else "info"
    if slow and speed / 1000 <= a.limits["info"]:
        yield Finding(level, f"{words}, no InfiniBand", f"more than {a.limits['info']:g} Gbit/s")
    else:
        yield passed(words)


def _speed(a: NodeAnswers) -> str | None:
    own = own_interface(a)
    return f"{own.speed / 1000:g} Gbit/s" if own and own.speed else None


CHECKS = {
    "net.firewall": Check(
        title="no firewall service is running",
        why="A firewall explains failed connections, which `net.mesh` finds.",
        flow=each(
            _flow_net_firewall,
            lambda scope: {"files": UFW_FILES, "firewalld": FIREWALLD},
            fine="ufw and firewalld are not running",
        ),
        fix="allow all TCP traffic between the nodes",
        see="ufw status; firewall-cmd --list-all",
        source="ufw(8); firewall-cmd(1)",
    ),
    "net.interface": Check(
        title="addresses are on physical interfaces of one name",
        why=(
            "NCCL and gloo select an interface by its name. One variable for all nodes "
            "does not work if names differ; docker0 and virbr0 have the same address on "
            "every node, which no other node reaches."
        ),
        fix=(
            "make the node's name resolve to the address of a physical interface; if "
            "names differ, dslaunch sets NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME per "
            "node; other launchers do not"
        ),
        see="ip -br addr; ip route",
        source="NCCL documentation, NCCL_SOCKET_IFNAME; PyTorch, GLOO_SOCKET_IFNAME",
        flow=judged(
            _net_interface,
            lambda scope: {"interfaces": INTERFACES, "resolve": resolve(scope), "routes": ROUTES},
            compare=alike(_interface_name, found="its interface is {value}"),
        ),
    ),
    "net.port": Check(
        title="the rendezvous (master) port is free",
        why=(
            "If the port is in use, the first rank's store cannot listen (EADDRINUSE), "
            "or the other ranks join a different training."
        ),
        fix=("set `network.master_port` to another port, or remove it, and dslaunch finds one"),
        see="ss -ltnp",
        source="microsoft/DeepSpeed#1923; torch 2.13 distributed/run.py",
        flow=each(_flow_net_port, lambda scope: {"listen": _listen(scope)}),
    ),
    "net.port-range": Check(
        title="enough local ports for connections",
        why=(
            "NCCL and gloo open connections from ports of the kernel's range. If the "
            "rendezvous port is in it, a connection sometimes uses it when a training "
            "starts."
        ),
        flow=judged(
            _net_port_range,
            lambda scope: {"files": PORT_FILES},
            fine="enough local ports for connections",
        ),
        fix=("run `sysctl -w net.ipv4.ip_local_reserved_ports=PORT`, or use a port below 32768"),
        see="sysctl net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports",
        source="Linux networking/ip-sysctl, ip_local_port_range",
        limits={"warn": 10000},
        limits_mean="local ports below which it warns",
    ),
    "net.speed": Check(
        title="network speed is uniform and sufficient for GPUs",
        why=(
            "All ranks wait for the slowest link. ZeRO-3 transfers all parameters twice "
            "per step: at 1 Gbit/s that takes half a minute each for a billion "
            "parameters."
        ),
        fix=(
            "check the cable, the switch port and `ethtool`; on a slow network use "
            "ZeRO-1 and gradient accumulation instead of ZeRO-3"
        ),
        see="ethtool INTERFACE | grep Speed",
        source="DeepSpeed, ZeRO-3 communication volume (arXiv 1910.02054); NHC check_hw_eth",
        flow=judged(
            _net_speed,
            lambda scope: {
                "interfaces": INTERFACES,
                "resolve": resolve(scope),
                "nvidia": NVIDIA,
                "infiniband": INFINIBAND,
            },
            compare=alike(_speed),
        ),
        limits={"warn": 1, "info": 10},
        limits_mean=(
            "Gbit/s up to which it warns, or informs, for nodes with GPUs and no InfiniBand"
        ),
    ),
}
