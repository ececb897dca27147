"""Whether earlier jobs left something in shared memory."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Asked, Check, Question, Scope, Verdict, passed
from dslaunch.preflight.checks._machine import path_question, space

LEFT = Question("list", {"path": "/dev/shm", "names": "*", "depth": 0, "most": 1000}, 5)
HOUR = 3600


def _ask(scope: Scope) -> Asked:
    return {"left": LEFT, "shm": path_question("/dev/shm")}


def _judge(a: Answers) -> Iterator[Verdict]:
    """Whose they are cannot be told from their names: what counts is what they take away."""
    old = [file for file in a["left"] if file["age"] > HOUR]
    total = sum(file["size"] for file in old)
    share = 100 * total / a["shm"]["size"] if a["shm"]["size"] > 0 else 0.0
    if share > a.limits["warn"]:
        words = f"{len(old)} segments older than an hour take {space(total)} of shared memory"
        yield Verdict("warn", words, f"less than {a.limits['warn']:g} %")
    else:
        yield passed("nothing much is left in shared memory")


CHECK = Check(
    title="earlier jobs left no shared memory behind",
    tier="static",
    why="A rank that is killed cannot remove its segments: they take memory until somebody does, "
    "and the next job's do not fit.",
    fix="if no job runs there: `rm /dev/shm/nccl-* /dev/shm/torch_*`",
    see="ls -l /dev/shm",
    source="shm_overview(7); facebookresearch/gcm",
    ask=_ask,
    judge=_judge,
    limits={"warn": 10},
    limits_mean="per cent of /dev/shm above which it warns",
)
