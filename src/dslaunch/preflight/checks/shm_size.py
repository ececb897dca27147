"""Whether shared memory is large enough for NCCL and data loaders."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Asked, Check, Scope, Verdict, passed
from dslaunch.preflight.checks._machine import CONTAINER, NVIDIA, path_question, space

MEBI = 1 << 20
PLACE = "/dev/shm"


def _ask(scope: Scope) -> Asked:
    return {"shm": path_question(PLACE), "nvidia": NVIDIA, "in": CONTAINER}


def _judge(a: Answers) -> Iterator[Verdict]:
    shm = a["shm"]
    size, free = shm["size"], shm["free"]
    gpu = bool(a["nvidia"])
    ranks = len(a.node.slots)
    words = f"{PLACE} is {space(size)}"
    least = a.limits["gpu" if gpu else "fail"] * MEBI
    if size < least:
        fix = "docker: `--ipc=host` or `--shm-size=16g`" if a["in"] else ""
        yield Verdict("fail", words, space(least), fix)
    elif gpu and size < a.limits["warn"] * MEBI * ranks:
        yield Verdict("warn", words, f"{space(a.limits['warn'] * MEBI * ranks)} for {ranks} ranks")
    elif free < least / 4:
        yield Verdict("warn", f"{words}, with {space(free)} free", "room", "see shm.leftover")
    else:
        yield passed(words)


CHECK = Check(
    title="shared memory is large enough",
    tier="gate",
    why="NCCL's ranks on a node, and data loaders' workers, hand data over in /dev/shm. Docker "
    "gives it 64 MiB: `Error while creating shared memory segment`, or a bus error.",
    fix="`mount -o remount,size=50% /dev/shm`",
    see="df -h /dev/shm",
    source="NCCL documentation, troubleshooting: shared memory; DeepSpeed 0.19 env_report "
    "(512 MiB)",
    ask=_ask,
    judge=_judge,
    limits={"fail": 128, "gpu": 512, "warn": 1024},
    limits_mean="MiB without GPUs, and with them; and for each rank, below which it warns",
)
