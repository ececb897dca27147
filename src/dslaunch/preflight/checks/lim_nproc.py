"""How many processes and threads a user may have."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Verdict, passed
from dslaunch.preflight.checks.lim_memlock import LIMITS


def _judge(a: Answers) -> Iterator[Verdict]:
    soft, _ = a["limits"]["NPROC"]
    if soft < 0:
        yield passed("no limit")
    elif soft < a.limits["warn"] and a.hello["uid"] != 0:
        yield Verdict("warn", f"{soft} processes and threads", f"{a.limits['warn']:g}")
    else:
        yield passed("enough processes and threads")


CHECK = Check(
    title="enough threads may be started",
    tier="static",
    why="Every rank has some hundred threads, data loaders beside. At the limit `fork` "
    "fails, or OpenBLAS says that it cannot create a thread.",
    fix="`* - nproc unlimited` in /etc/security/limits.d; docker: `--pids-limit=-1`",
    see="ulimit -u",
    source="setrlimit(2), RLIMIT_NPROC; NHC",
    ask=lambda scope: {"limits": LIMITS},
    judge=_judge,
    limits={"warn": 4096},
    limits_mean="processes and threads below which it warns",
)
