"""Whether InfiniBand and RoCE links have gone down lately."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from dslaunch.plural import counted
from dslaunch.preflight.check import Answers, Check, Verdict, passed, skipped
from dslaunch.preflight.checks import _infiniband as infiniband
from dslaunch.preflight.checks import _kernel as kernel
from dslaunch.preflight.flow import NodeFlow, each

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
    since = max(STARTING, kernel.since(text, hours))
    return Counter(m["device"] for m in _DOWN.finditer(text) if float(m["time"]) >= since)


def _flow(a: Answers) -> NodeFlow:
    if infiniband.devices(a):
        a = yield {"kernel": kernel.LOG}
    if not infiniband.in_use(a):
        return [skipped("no InfiniBand or RoCE card in use")]
    return _judge(a)


def _judge(a: Answers) -> Iterator[Verdict]:
    found = infiniband.devices(a)
    nets = {path.split("/")[-2] for path in a["ports"] if "/device/net/" in path}
    counts = {
        name: times
        for name, times in flaps(kernel.log(a), a.limits["hours"]).items()
        if name in found or name in nets
    }
    for name, times in counts.items():
        words = f"{name} lost its link {counted(times, 'time')}"
        yield Verdict("fail" if times >= a.limits["fail"] else "warn", words, "never")
    if not counts:
        yield passed("no link was lost")


CHECK = Check(
    title="InfiniBand and RoCE links stay up",
    tier="static",
    why="A link that comes and goes ends a training with a time-out of NCCL. Cables and switches "
    "were 8 % of the interruptions of Llama 3 405B. The cards' own counter is of little use: it "
    "has 8 bits, and stays at 255.",
    fix="reseat or change the cable and transceiver, at both ends",
    see="sudo dmesg -T | grep -i 'link down'",
    source="AzureHPC health checks (5 in 24 hours); The Llama 3 Herd of Models, 2024, table 5",
    ask=infiniband.ask,
    flow=each(_flow),
    limits={"hours": 24, "fail": 5},
    limits_mean="hours back that are looked at; lost links of a device from which it fails",
)
