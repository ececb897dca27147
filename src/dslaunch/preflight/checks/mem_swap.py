"""Whether memory had to be put onto a disk."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Verdict, passed
from dslaunch.preflight.checks._machine import GIB, MEMORY, memory, space


def _judge(a: Answers) -> Iterator[Verdict]:
    found = memory(a)
    used = found.get("SwapTotal", 0) - found.get("SwapFree", 0)
    free = 100 * found.get("MemAvailable", 0) / max(1, found.get("MemTotal", 1))
    if used < GIB:
        yield passed("swap is not in use")
    elif free < a.limits["warn"]:
        yield Verdict("warn", f"{space(used)} of swap in use while little memory is free", "none")
    else:
        yield passed(f"{space(used)} lie in swap; memory is free")


CHECK = Check(
    title="the node does not swap",
    tier="static",
    why="A rank whose memory lies on a disk is a hundred times slower than the others, and all "
    "wait for it.",
    fix="end what takes the memory, then `swapoff -a && swapon -a`",
    see="free -g; vmstat 1 3",
    source="NHC check_hw_swap_free; proc(5), /proc/meminfo",
    ask=lambda scope: {"memory": MEMORY},
    judge=_judge,
    limits={"warn": 20},
    limits_mean="per cent of memory that must be free when swap is in use",
)
