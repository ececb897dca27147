"""Whether a node is busy with something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median

from dslaunch.preflight.check import Answers, Check, Nodes, Question, Verdict

LOAD = Question("read", ["/proc/loadavg", "/sys/devices/system/cpu/online"])
LEAST = 4.0


def cores(text: str) -> int:
    """How many CPUs a list such as `0-15,32` names."""
    spans = re.findall(r"(\d{1,9})(?:-(\d{1,9}))?", text)
    return sum(int(last or first) - int(first) + 1 for first, last in spans)


def _load(a: Answers) -> float | None:
    """Runnable processes per core, the less of the last and the last five minutes."""
    if not a.has("load"):
        return None
    found = re.match(r"([\d.]+) ([\d.]+) ", a["load"].get("/proc/loadavg", ""))
    count = cores(a["load"].get("/sys/devices/system/cpu/online", "")) or a.hello["cores"]
    if not found or count < 1:
        return None
    try:
        runs = min(float(found[1]), float(found[2]))
    except ValueError:
        return None
    return runs / count if runs >= LEAST else 0.0


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    """Against the others: all nodes that are equally busy make no straggler."""
    loads = {host: _load(a) for host, a in nodes.items()}
    known = {host: load for host, load in loads.items() if load is not None}
    for host in loads.keys() - known.keys():
        yield Verdict("unknown", "its load was not told", hosts=(host,))
    middle = median(known.values()) if known else 0.0
    for host, load in known.items():
        limit = nodes[host].limits["warn"]
        found = f"{load:.1f} runnable processes per core"
        if load <= limit:
            yield Verdict("pass", "not busy", hosts=(host,))
        elif len(known) > 1 and load <= 2 * middle:
            yield Verdict("info", "busy, as the other nodes are", hosts=(host,))
        else:
            yield Verdict("warn", found, f"less than {limit:g}", hosts=(host,))


CHECK = Check(
    title="no node is busy with something else",
    tier="static",
    why="The slowest node sets the pace of all: data loaders and the optimizer on the CPU wait "
    "for a core, and every rank waits for them.",
    fix="see what runs there, and end what is left over from earlier jobs",
    see="top -bn1 | head -20",
    source="NHC check_ps_loadavg; facebookresearch/gcm check_processor",
    ask=lambda scope: {"load": LOAD},
    compare=_compare,
    limits={"warn": 0.5},
    limits_mean="runnable processes per core, where there are at least four",
)
