"""Checks of a node's CPUs: how many may be used, how fast they run, who uses them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median

from msgspec import Struct

from dslaunch.plural import counted
from dslaunch.preflight.alike import by_host
from dslaunch.preflight.check import (
    Check,
    Finding,
    Level,
    NodeAnswers,
    Nodes,
    Question,
    passed,
    skipped,
)
from dslaunch.preflight.checks._machine import NVIDIA
from dslaunch.preflight.comparison import alike
from dslaunch.preflight.flow import compared, judged

ONLINE = Question("read", ["/sys/devices/system/cpu/online"])


def _cpu_affinity(a: NodeAnswers) -> Iterator[Finding]:
    mine, ranks = a.kind.cores, len(a.kind.slots)
    there = cores(a["online"].get(ONLINE.argument[0], ""))
    gpu = bool(a["nvidia"])
    level: Level = "fail" if gpu else "info"
    if mine < ranks:
        yield Finding(
            level,
            f"{counted(mine, 'core')} available for {counted(ranks, 'rank')}",
            "at least one per rank",
        )
    elif there > 2 * mine:
        level = "warn" if gpu else "info"
        yield Finding(level, f"{mine} of {counted(there, 'core')} available", "all cores")


CPUFREQ = "/sys/devices/system/cpu/cpu0/cpufreq/"
FREQUENCY = Question(
    "read",
    [
        CPUFREQ + name
        for name in ("scaling_governor", "scaling_driver", "energy_performance_preference")
    ],
)
OWN_DRIVERS = ("intel_pstate", "amd-pstate", "amd-pstate-epp")
"""Drivers whose `powersave` lets the CPU choose its frequency, and which have an energy
preference."""


def _cpu_governor(a: NodeAnswers) -> Iterator[Finding]:
    governor, driver, preference = (a["files"].get(path, "") for path in FREQUENCY.argument)
    if not governor:
        yield skipped("no CPU frequency scaling")
    elif governor == "powersave" and (driver not in OWN_DRIVERS or preference == "power"):
        yield Finding(
            "warn", f"CPU frequency governor saves power ({driver}: {governor})", "performance"
        )
    else:
        yield passed(f"governor {governor}")


def _governor(a: NodeAnswers) -> str:
    return str(a["files"].get(FREQUENCY.argument[0], "none"))


LOAD = Question("read", ["/proc/loadavg", "/sys/devices/system/cpu/online"])
LEAST = 4.0
"""Runnable processes, up to which no node is called busy, however few cores it has."""


def cores(text: str) -> int:
    """How many CPUs a list such as `0-15,32` names."""
    spans = re.findall(r"(\d{1,9})(?:-(\d{1,9}))?", text)
    return sum(int(last or first) - int(first) + 1 for first, last in spans)


class _Load(Struct, frozen=True):
    """How busy a node is."""

    processes: float
    """Runnable ones: the less of the last minute and the last five."""
    cores: int

    @property
    def per_core(self) -> float:
        """Return the runnable processes of each core."""
        return self.processes / self.cores

    def is_high(self, limit: float) -> bool:
        """Return whether more processes are runnable than `limit` per core, and not only a few."""
        return self.processes >= LEAST and self.per_core > limit


def _load(a: NodeAnswers) -> _Load | None:
    if not a.has("load"):
        return None
    found = re.match(r"([\d.]+) ([\d.]+) ", a["load"].get("/proc/loadavg", ""))
    count = cores(a["load"].get("/sys/devices/system/cpu/online", "")) or a.kind.cores
    if not found or count < 1:
        return None
    try:
        return _Load(min(float(found[1]), float(found[2])), count)
    except ValueError:
        return None


def _compare_cpu_load(nodes: Nodes) -> Iterator[Finding]:
    """Against the others: all nodes that are equally busy make no straggler."""
    loads = by_host(nodes, _load)
    known = {host: load for host, load in loads.items() if load is not None}
    unknown = tuple(host for host in loads if host not in known)
    yield Finding("unknown", "load not reported", hosts=unknown)
    middle = median(load.per_core for load in known.values()) if known else 0.0
    limit = next(iter(nodes.values())).limits["warn"]
    busy = {host: load.per_core for host, load in known.items() if load.is_high(limit)}
    calm = tuple(host for host in known if host not in busy)
    yield Finding("pass", "not busy", hosts=calm)
    for host, load in busy.items():
        if len(known) > 1 and load <= 2 * middle:
            yield Finding("info", "as busy as the other nodes", hosts=(host,))
        else:
            found = f"{load:.1f} runnable processes per core"
            yield Finding("warn", found, f"less than {limit:g}", hosts=(host,))


CHECKS = {
    "cpu.affinity": Check(
        title="CPU cores are available for all ranks",
        why=(
            "A session in a cgroup or cpuset sees fewer cores than the machine has; "
            "ranks and their data loaders share them, and a step takes many times as "
            "long."
        ),
        flow=judged(
            _cpu_affinity,
            lambda scope: {"online": ONLINE, "nvidia": NVIDIA},
            fine="CPU cores available for all ranks",
            compare=alike(
                lambda a: str(a.kind.cores),
                level="info",
                found="{value} cores; {common} on {count} nodes",
                expected="",
            ),
        ),
        fix=(
            "SLURM: `--exclusive` or `--cpus-per-task`; docker: remove `--cpuset-cpus`; "
            "systemd: AllowedCPUs of the user's slice"
        ),
        see="nproc; nproc --all",
        source="sched_getaffinity(2); PyTorch DataLoader, number of workers",
    ),
    "cpu.governor": Check(
        title="CPU frequency governor is performance",
        why=(
            "Single threads launch kernels and prepare batches: at the lowest CPU "
            "frequency the GPUs wait for them."
        ),
        fix="run `cpupower frequency-set -g performance`",
        see=f"cat {CPUFREQ}scaling_governor",
        source="Linux admin-guide/pm/cpufreq; facebookresearch/gcm check_processor",
        flow=judged(
            _cpu_governor,
            lambda scope: {"files": FREQUENCY},
            compare=alike(
                _governor,
                level="info",
                found="governor {value}; {common} on {count} nodes",
                expected="",
            ),
        ),
    ),
    "cpu.load": Check(
        title="no node has a high CPU load",
        why=(
            "The slowest node limits the speed of all: data loaders and the optimizer on "
            "the CPU wait for a core, and every rank waits for them."
        ),
        fix="find the processes with `top`, and end those left by earlier jobs",
        see="top -bn1 | head -20",
        source="NHC check_ps_loadavg; facebookresearch/gcm check_processor",
        flow=compared(_compare_cpu_load, lambda scope: {"load": LOAD}),
        limits={"warn": 0.5},
        limits_mean="runnable processes per core at which it warns, if there are at least four",
    ),
}
