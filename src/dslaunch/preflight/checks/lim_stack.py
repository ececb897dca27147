"""How large the stacks of threads are."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Verdict, passed
from dslaunch.preflight.checks.lim_memlock import LIMITS, MEBI


def _judge(a: Answers) -> Iterator[Verdict]:
    soft, _ = a["limits"]["STACK"]
    if soft < 0:
        yield Verdict("warn", "unlimited, which gives threads 2 MiB", f"{a.limits['warn']:g} MiB")
    elif soft < a.limits["warn"] * MEBI:
        yield Verdict("warn", f"{soft / MEBI:g} MiB", f"{a.limits['warn']:g} MiB")
    else:
        yield passed("of the usual size")


CHECK = Check(
    title="threads get stacks of the usual size",
    tier="static",
    why="With an unlimited stack glibc gives new threads 2 MiB, too few for NCCL's; the "
    "rank dies with a segmentation fault.",
    fix="`ulimit -S -s 8192` in the shell's profile",
    see="ulimit -s",
    source="NCCL documentation, troubleshooting: stack size; pthread_create(3)",
    ask=lambda scope: {"limits": LIMITS},
    judge=_judge,
    limits={"warn": 8},
    limits_mean="MiB below which it warns",
)
