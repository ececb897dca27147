"""Whether somebody uses the GPUs already."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from dslaunch.plural import counted
from dslaunch.preflight.check import Answers, Check, UnansweredError, Verdict, passed
from dslaunch.preflight.checks import _nvidia as nvidia


@dataclass(frozen=True, slots=True)
class Process:
    """A process that holds memory of a GPU."""

    gpu: str
    pid: int
    uid: int | None
    """None: it is gone, or in another container."""
    user: str


_LINE = re.compile(r"^(GPU-\S+), (\d{1,10}), (\d{0,10}),([^,]*), .*$")


def processes(text: str) -> list[Process]:
    """Read the lines of the question."""
    found = [match for line in text.splitlines() if (match := _LINE.match(line))]
    return [Process(m[1], int(m[2]), int(m[3]) if m[3] else None, m[4].strip()) for m in found]


def _judge(a: Answers) -> Iterator[Verdict]:
    answer = a.value(nvidia.APPS)
    if answer["code"]:
        raise UnansweredError(f"nvidia-smi ended with {answer['code']}")
    everybody = processes(answer["out"])
    alive = [process for process in everybody if process.uid is not None]
    me = a.hello.get("uid")
    others = Counter(p.user or str(p.uid) for p in alive if p.uid != me)
    if others:
        words = ", ".join(
            f"{counted(times, 'process', 'processes')} of {user}" for user, times in others.items()
        )
        yield Verdict("fail", f"{words} on the GPUs", "nobody uses them")
    mine = [p.pid for p in alive if p.uid == me]
    if mine:
        # numbers that another run of the same program would not have belong to what is to be done
        pids = " ".join(map(str, mine[:8]))
        count = counted(len(mine), "own process", "own processes")
        yield Verdict("warn", f"{count} on the GPUs", "none", f"wait, or end it: `kill {pids}`")
    held = _held(a, {process.gpu for process in everybody})
    if held:
        words = f"GPU {nvidia.listed(held)}: memory in use by no process that is to be seen"
        yield Verdict("warn", words, "none", "`fuser -v /dev/nvidia*` as root names who holds it")
    if not (alive or held):
        yield passed("nobody uses the GPUs")


def _held(a: Answers, known: set[str]) -> list[int]:
    """GPUs whose memory is in use though they have no process; those with a display always are."""
    found = []
    for gpu in nvidia.gpus(a):
        used, total = gpu.number("memory.used") or 0, gpu.number("memory.total") or 0
        shows = gpu.on("display_active") or gpu.on("mig.mode.current")
        most = max(a.limits["mebibytes"], total * a.limits["per cent"] / 100)
        if used > most and not shows and gpu.text("uuid") not in known:
            found.append(gpu.index)
    return found


CHECK = Check(
    title="nobody uses the GPUs",
    tier="static",
    why="What is left of an earlier job, or another user's, takes memory and time of the GPU: the "
    "training runs out of memory at its first step, or one node holds up all.",
    fix="ask its owner, or choose other nodes; end a process by its number only",
    see="nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv",
    source="facebookresearch/gcm; imbue-ai/cluster-health",
    ask=nvidia.ask,
    flow=nvidia.where_up(_judge, apps=nvidia.APPS),
    limits={"mebibytes": 64, "per cent": 1},
    limits_mean="memory in use without a process, in MiB and in per cent, above which it warns; "
    "the "
    "greater counts",
)
