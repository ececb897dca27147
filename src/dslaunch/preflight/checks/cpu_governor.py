"""Whether the CPUs run at full speed when they are needed."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Question, Verdict, passed, skipped
from dslaunch.preflight.checks._alike import alike

PLACE = "/sys/devices/system/cpu/cpu0/cpufreq/"
FILES = Question(
    "read",
    [
        PLACE + name
        for name in ("scaling_governor", "scaling_driver", "energy_performance_preference")
    ],
)
OWN = ("intel_pstate", "amd-pstate", "amd-pstate-epp")
"""Drivers whose `powersave` means that the CPU itself chooses, and can be told to be thrifty."""


def _judge(a: Answers) -> Iterator[Verdict]:
    governor, driver, preference = (a["files"].get(path, "") for path in FILES.argument)
    if not governor:
        yield skipped("the CPUs' speed is not chosen there")
    elif governor == "powersave" and (driver not in OWN or preference == "power"):
        yield Verdict("warn", f"the CPUs save power ({driver}: {governor})", "performance")
    else:
        yield passed(f"governor {governor}")


def _governor(a: Answers) -> str:
    return str(a["files"].get(FILES.argument[0], "none"))


CHECK = Check(
    title="the CPUs run at full speed when they are needed",
    tier="static",
    why="Kernels are launched, and batches made, by single threads: at the lowest frequency the "
    "GPUs wait for them.",
    fix="`cpupower frequency-set -g performance`",
    see=f"cat {PLACE}scaling_governor",
    source="Linux admin-guide/pm/cpufreq; facebookresearch/gcm check_processor",
    ask=lambda scope: {"files": FILES},
    judge=_judge,
    compare=alike(
        _governor,
        level="info",
        found="governor {value}; {common} on {count} nodes",
        expected="",
    ),
)
