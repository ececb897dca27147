"""Whether there is memory to work with, and as much as on the other nodes."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from dslaunch.preflight.check import Answers, Check, Nodes, Verdict, passed
from dslaunch.preflight.checks._machine import MEMORY, memory, space

MEBI = 1 << 20


def _judge(a: Answers) -> Iterator[Verdict]:
    found = memory(a)
    if "MemTotal" not in found or "MemAvailable" not in found:
        yield Verdict("unknown", "the kernel does not say how much memory is free")
        return
    share = 100 * found["MemAvailable"] / max(1, found["MemTotal"])
    words = f"{space(found['MemAvailable'])} of memory free, of {space(found['MemTotal'])}"
    if found["MemAvailable"] < a.limits["fail"] * MEBI:
        yield Verdict("fail", words, f"{a.limits['fail']:g} MiB")
    elif share < a.limits["warn"]:
        yield Verdict("warn", words, f"{a.limits['warn']:g} %")
    else:
        yield passed("memory is free")


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    totals = {h: memory(a).get("MemTotal", 0) for h, a in nodes.items() if a.has("memory")}
    middle = median(totals.values()) if totals else 0
    few = [h for h, total in totals.items() if 0 < total < middle * 0.9]
    for host in few:
        words = f"{space(totals[host])} of memory"
        yield Verdict("warn", words, f"{space(middle)}, as most nodes have", hosts=(host,))


CHECK = Check(
    title="memory is free, as much as on the other nodes",
    tier="static",
    why="Loading a model, or an optimizer that is offloaded, ends with the kernel's OOM killer: "
    "a rank dies by signal 9 without a word. A node with less than the others dies first; a "
    "missing module shows as less memory.",
    fix="end what is left over from earlier jobs; if the total is less: see `dmidecode -t memory`",
    see="free -g",
    source="NHC check_hw_physmem; proc(5), /proc/meminfo",
    ask=lambda scope: {"memory": MEMORY},
    judge=_judge,
    compare=_compare,
    limits={"fail": 256, "warn": 10},
    limits_mean="MiB that must be free; per cent of all memory that should be",
)
