"""Whether RoCE ports have an address that NCCL can use."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dslaunch.preflight.check import Answers, Check, Question, Verdict, passed, skipped
from dslaunch.preflight.checks import _infiniband as infiniband
from dslaunch.preflight.flow import NodeFlow, each

_TOP = "/sys/class/infiniband/*/ports/*"
GIDS = Question(
    "read", [f"{_TOP}/{of}/{i}" for of in ("gids", "gid_attrs/types") for i in range(10)]
)
"""The first ten of up to 256: what a port has for its own addresses comes first."""
_PATH = re.compile(
    r"^/sys/class/infiniband/([^/]+)/ports/(\d{1,9})/(gids|gid_attrs/types)/(\d{1,9})$"
)
_IPV4 = "0000:0000:0000:0000:0000:ffff:"


def usable(files: Mapping[str, str]) -> dict[tuple[str, int], list[int]]:
    """By device and port, the indices of RoCE v2 addresses that stand for IPv4."""
    gids: dict[tuple[str, int], dict[int, str]] = {}
    kinds: dict[tuple[str, int], dict[int, str]] = {}
    for path, text in files.items():
        if at := _PATH.match(path):
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


def _flow(a: Answers) -> NodeFlow:
    ethernet = [port for port in infiniband.ports(a) if port.ethernet]
    if ethernet:
        a = yield {"gids": GIDS}
    roce = [port for port in ethernet if port.state == "ACTIVE"]
    if not roce:
        return [skipped("no RoCE")]
    found = usable(a.value(GIDS))
    without = [port.name for port in roce if not found.get((port.device, port.number))]
    if len(without) == len(roce):
        words = f"{infiniband.named(without)}: no RoCE v2 address for IPv4"
        return [Verdict("warn", words, "one")]
    if without:
        return [Verdict("info", f"{infiniband.named(without)}: no RoCE v2 address for IPv4")]
    indices = sorted({of[0] for port, of in found.items() if of})
    return [passed(f"RoCE v2 address at index {', '.join(map(str, indices))}")]


CHECK = Check(
    title="RoCE ports have a RoCE v2 address",
    tier="static",
    why="NCCL connects over the address that a port has for IPv4; without it the training hangs "
    "while it connects.",
    fix="give the port's interface an IPv4 address, and bring it up; NCCL before 2.21 needs "
    "NCCL_IB_GID_INDEX too",
    see="show_gids",
    source="NCCL documentation, NCCL_IB_GID_INDEX and NCCL_IB_ROCE_VERSION_NUM",
    ask=infiniband.ask,
    flow=each(_flow),
)
