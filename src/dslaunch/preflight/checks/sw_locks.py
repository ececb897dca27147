"""Whether a lock is left from a build of DeepSpeed's kernels."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.launch.command import quote
from dslaunch.preflight.check import Answers, Check, Question, Verdict, passed
from dslaunch.preflight.flow import NodeFlow, each

VARIABLE = "TORCH_EXTENSIONS_DIR"
ENVIRONMENT = Question("environment", [VARIABLE])


def _locks(path: str) -> Question:
    return Question("list", {"path": path, "names": "lock", "depth": 2}, 8)


USUAL = _locks("~/.cache/torch_extensions")


def _flow(a: Answers) -> NodeFlow:
    own = a["environment"].get(VARIABLE) if a.has("environment") else None
    place = _locks(own) if own else USUAL
    if place != USUAL:
        a = yield {"own": place}
    return _judge(a, place)


def _judge(a: Answers, place: Question) -> Iterator[Verdict]:
    old = [lock["path"] for lock in a.value(place) if lock["age"] > 60 * a.limits["warn"]]
    if old:
        more = f" and {len(old) - 1} more" if len(old) > 1 else ""
        yield Verdict("warn", f"an old lock: {old[0]}{more}", "none", f"rm {quote(old[0])}")
    else:
        yield passed("no old lock")


CHECK = Check(
    title="no lock is left from a build of kernels",
    tier="static",
    why="PyTorch builds DeepSpeed's kernels under a lock file. Who was killed while building left "
    "it, and every rank waits for it, for ever, without a word.",
    fix="remove the file `lock` if nobody builds",
    see="find ~/.cache/torch_extensions -name lock -mmin +10",
    source="torch 2.13 utils/file_baton.py; microsoft/DeepSpeed#2816",
    ask=lambda scope: {"locks": USUAL, "environment": ENVIRONMENT},
    flow=each(_flow),
    limits={"warn": 10},
    limits_mean="minutes after which a lock is old",
)
