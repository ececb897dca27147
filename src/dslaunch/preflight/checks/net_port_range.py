"""Whether there are ports for all connections, and none of them is the meeting place's."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Question, Verdict, passed
from dslaunch.preflight.checks.net_port import USUAL

RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"
FILES = Question("read", [RANGE, RESERVED])


def _judge(a: Answers) -> Iterator[Verdict]:
    found = re.fullmatch(r"(\d{1,5})\s+(\d{1,5})", a["files"].get(RANGE, "").strip())
    if not found:
        yield Verdict("unknown", "the kernel does not tell its port range")
        return
    low, high = int(found[1]), int(found[2])
    port = a.scope.cluster.network.master_port or USUAL
    reserved = re.findall(r"(\d{1,5})(?:-(\d{1,5}))?", a["files"].get(RESERVED, ""))
    kept = any(int(first) <= port <= int(last or first) for first, last in reserved)
    if high - low + 1 < a.limits["warn"]:
        words = f"only ports {low} to {high} for connections"
        yield Verdict(
            "warn",
            words,
            f"{a.limits['warn']:g}",
            "`sysctl -w net.ipv4.ip_local_port_range='32768 60999'`",
        )
    if low <= port <= high and not kept:
        yield Verdict("warn", f"port {port} may be taken by any connection", "a reserved port")
    elif high - low + 1 >= a.limits["warn"]:
        yield passed("enough ports for connections")


CHECK = Check(
    title="there are ports for all connections",
    tier="static",
    why="NCCL and gloo open connections from ports of the kernel's range. If the meeting place's "
    "port is in it, now and then a connection has it when a training starts.",
    fix="`sysctl -w net.ipv4.ip_local_reserved_ports=PORT`, or a port below 32768",
    see="sysctl net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports",
    source="Linux networking/ip-sysctl, ip_local_port_range",
    ask=lambda scope: {"files": FILES},
    judge=_judge,
    limits={"warn": 10000},
    limits_mean="ports that should be there",
)
