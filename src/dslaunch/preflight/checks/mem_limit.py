"""Whether a cgroup keeps our session from the machine's memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dslaunch.launch.command import quote
from dslaunch.preflight.check import Answers, Check, Question, Verdict, passed
from dslaunch.preflight.checks._machine import MEMORY, memory, space

LIMITS = Question(
    "read",
    [
        "/proc/self/cgroup",
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/user.slice/memory.max",
        "/sys/fs/cgroup/user.slice/user-*.slice/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/user.slice/memory.limit_in_bytes",
    ],
)


def _judge(a: Answers) -> Iterator[Verdict]:
    total = memory(a).get("MemTotal", 0)
    user = re.compile(rf"/user-(?!{int(a.hello['uid'])}\.)\d+\.slice/")
    files = {path: text for path, text in a["limits"].items() if not user.search(path)}
    limits = {int(text): path for path, text in files.items() if re.fullmatch(r"\d{1,20}", text)}
    least = min(limits, default=0)
    if not limits or not total or least >= total:
        yield passed("no cgroup limits memory")
    elif least < total * a.limits["warn"] / 100:
        words = f"a cgroup limits memory to {space(least)} of {space(total)}"
        yield Verdict("warn", words, "all of it", see=f"cat {quote(limits[least])}")
    else:
        yield passed(f"a cgroup limits memory to {space(least)}")


CHECK = Check(
    title="no cgroup keeps ranks from the machine's memory",
    tier="static",
    why="Beyond a cgroup's limit ranks are killed by signal 9 while the machine has memory free: "
    "with offload that is at the first optimizer step.",
    fix="SLURM: `--mem=0`; docker: without `--memory`; systemd: MemoryMax of user.slice",
    see="cat /sys/fs/cgroup/memory.max",
    source="Linux admin-guide/cgroup-v2, memory.max",
    ask=lambda scope: {"limits": LIMITS, "memory": MEMORY},
    judge=_judge,
    limits={"warn": 50},
    limits_mean="per cent of the machine's memory below which it warns",
)
