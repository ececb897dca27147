"""Whether we may use the CPUs that the ranks need."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Level, Question, Verdict, passed
from dslaunch.preflight.checks._alike import alike
from dslaunch.preflight.checks._machine import NVIDIA
from dslaunch.preflight.checks.cpu_load import cores

ONLINE = Question("read", ["/sys/devices/system/cpu/online"])


def _judge(a: Answers) -> Iterator[Verdict]:
    mine, ranks = int(a.hello["cores"]), len(a.node.slots)
    there = cores(a["online"].get(ONLINE.argument[0], ""))
    gpu = bool(a["nvidia"])
    level: Level = "fail" if gpu else "info"
    if mine < ranks:
        yield Verdict(level, f"{mine} cores for {ranks} ranks", "at least one for each")
    elif there > 2 * mine:
        level = "warn" if gpu else "info"
        yield Verdict(level, f"only {mine} of its {there} cores may be used", "all of them")
    else:
        yield passed("cores for all ranks")


CHECK = Check(
    title="there are cores for all ranks",
    tier="static",
    why="A session in a cgroup or cpuset sees fewer cores than the machine has; ranks and their "
    "data loaders then share a few, and a step takes many times as long.",
    fix="SLURM: `--exclusive` or `--cpus-per-task`; docker: without `--cpuset-cpus`; systemd: "
    "AllowedCPUs of the user's slice",
    see="nproc; nproc --all",
    source="sched_getaffinity(2); PyTorch DataLoader, number of workers",
    ask=lambda scope: {"online": ONLINE, "nvidia": NVIDIA},
    judge=_judge,
    compare=alike(
        lambda a: str(a.hello["cores"]),
        level="info",
        found="{value} cores; {common} on {count} nodes",
        expected="",
    ),
)
