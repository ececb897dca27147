"""How many files a process may open."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Verdict, passed
from dslaunch.preflight.checks.lim_memlock import LIMITS


def _judge(a: Answers) -> Iterator[Verdict]:
    soft, hard = a["limits"]["NOFILE"]
    ranks = sum(len(node.slots) for node in a.scope.nodes if not node.spare)
    least = a.limits["many"] if ranks > 64 else a.limits["fail"]
    words = f"{soft} open files" + (f" (at most {hard})" if hard != soft and hard > 0 else "")
    if soft < 0:
        yield passed("no limit")
    elif soft < least:
        yield Verdict("fail", words, f"at least {least:g}")
    elif soft < a.limits["warn"] * ranks:
        yield Verdict("warn", words, f"{a.limits['warn'] * ranks:g} for {ranks} ranks")
    else:
        yield passed(words)


CHECK = Check(
    title="enough files may be open",
    tier="static",
    why="Every connection, every file of a dataset and every pipe to a worker of a data "
    "loader is an open file; a rank with many neighbours dies with `Too many open "
    "files`.",
    fix="`* - nofile 1048576` in /etc/security/limits.d; LimitNOFILE for sshd and slurmd",
    see="ulimit -n; ulimit -Hn",
    source="NCCL documentation, troubleshooting: file descriptors; setrlimit(2)",
    ask=lambda scope: {"limits": LIMITS},
    judge=_judge,
    limits={"fail": 256, "many": 4096, "warn": 16},
    limits_mean="open files that every rank needs; those where there are more than 64 ranks; and "
    "for each rank, below which it warns",
)
