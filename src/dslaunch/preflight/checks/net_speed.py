"""Whether the network is as fast as the GPUs need, and as on the other nodes."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Asked, Check, Level, Scope, Verdict, passed, skipped
from dslaunch.preflight.checks._alike import alike
from dslaunch.preflight.checks._machine import (
    INFINIBAND,
    INTERFACES,
    NVIDIA,
    own_interface,
    resolve,
)


def _ask(scope: Scope) -> Asked:
    return {
        "interfaces": INTERFACES,
        "resolve": resolve(scope),
        "nvidia": NVIDIA,
        "infiniband": INFINIBAND,
    }


def _judge(a: Answers) -> Iterator[Verdict]:
    own = own_interface(a)
    speed = own["speed"] if own else None
    if own is None or not speed:
        yield skipped("the driver does not tell its speed")
        return
    words = f"{own['name']}: {speed / 1000:g} Gbit/s"
    slow = len(a.scope.nodes) > 1 and bool(a["nvidia"]) and not a["infiniband"]
    level: Level = "warn" if speed / 1000 <= a.limits["warn"] else "info"
    if slow and speed / 1000 <= a.limits["info"]:
        yield Verdict(level, f"{words} and no InfiniBand", f"more than {a.limits['info']:g} Gbit/s")
    else:
        yield passed(words)


def _speed(a: Answers) -> str | None:
    own = own_interface(a)
    return f"{own['speed'] / 1000:g} Gbit/s" if own and own["speed"] else None


CHECK = Check(
    title="the network is as fast as on the other nodes, and fast enough for GPUs",
    tier="static",
    why="All ranks wait for the slowest link. ZeRO-3 moves all parameters twice in a step: at "
    "1 Gbit/s a model of a billion parameters takes half a minute for each.",
    fix="see the cable, the switch's port and `ethtool`; where the network is slow, ZeRO-1 and "
    "gradient accumulation rather than ZeRO-3",
    see="ethtool INTERFACE | grep Speed",
    source="DeepSpeed, ZeRO-3 communication volume (arXiv 1910.02054); NHC check_hw_eth",
    ask=_ask,
    judge=_judge,
    compare=alike(_speed),
    limits={"warn": 1, "info": 10},
    limits_mean="Gbit/s up to which nodes with GPUs and no InfiniBand are warned of, and told",
)
