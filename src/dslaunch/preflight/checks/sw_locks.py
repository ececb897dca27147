"""Whether a lock is left from a build of DeepSpeed's kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dslaunch.launch.command import quote
from dslaunch.preflight.check import Answers, Asked, Check, Nodes, Question, Verdict, passed

VARIABLE = "TORCH_EXTENSIONS_DIR"
ENVIRONMENT = Question("environment", [VARIABLE])


def _locks(path: str) -> Question:
    return Question("list", {"path": path, "names": "lock", "depth": 2}, 8)


USUAL = _locks("~/.cache/torch_extensions")


def _place(a: Answers) -> Question:
    own = a["environment"].get(VARIABLE) if a.has("environment") else None
    return _locks(own) if own else USUAL


def _then(nodes: Nodes) -> Mapping[str, Asked]:
    return {host: {"own": _place(a)} for host, a in nodes.items() if _place(a) != USUAL}


def _judge(a: Answers) -> Iterator[Verdict]:
    old = [lock["path"] for lock in a.value(_place(a)) if lock["age"] > 60 * a.limits["warn"]]
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
    then=_then,
    judge=_judge,
    limits={"warn": 10},
    limits_mean="minutes after which a lock is old",
)
