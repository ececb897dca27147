"""How much memory a process may lock."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Question, Verdict, passed
from dslaunch.preflight.checks._machine import INFINIBAND

LIMITS = Question("limits", ["MEMLOCK", "NOFILE", "NPROC", "STACK"])
MEBI = 1 << 20


def _judge(a: Answers) -> Iterator[Verdict]:
    soft, _ = a["limits"]["MEMLOCK"]
    if soft < 0:
        yield passed("unlimited")
        return
    found = f"{soft / MEBI:g} MiB"
    if not a["infiniband"]:
        yield passed(f"{found}; no InfiniBand, so nothing is locked")
    elif soft < a.limits["fail"] * MEBI:
        yield Verdict("fail", found, "unlimited")
    else:
        yield Verdict("warn", found, "unlimited")


CHECK = Check(
    title="memory may be locked for InfiniBand",
    tier="static",
    why="Registering memory with an InfiniBand card locks it. With a low limit NCCL fails with "
    "`ibv_reg_mr` or `ibv_create_qp` errors as soon as a buffer grows.",
    fix="`* - memlock unlimited` in /etc/security/limits.d; LimitMEMLOCK=infinity for sshd and "
    "slurmd; `docker run --ulimit memlock=-1`",
    see="ulimit -l",
    source="NCCL documentation, troubleshooting: memory",
    ask=lambda scope: {"limits": LIMITS, "infiniband": INFINIBAND},
    judge=_judge,
    limits={"fail": 64},
    limits_mean="MiB below which it fails",
)
