"""Checks of the memory of a node, and of what its processes share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median

from dslaunch.launch.command import quote
from dslaunch.preflight.check import Check, Finding, NodeAnswers, Nodes, Question, passed
from dslaunch.preflight.checks._machine import (
    CONTAINER,
    GIB,
    MEMORY,
    NVIDIA,
    memory,
    path_question,
    space,
)

MEBI = 1 << 20


def _available(a: NodeAnswers) -> Iterator[Finding]:
    found = memory(a)
    if "MemTotal" not in found or "MemAvailable" not in found:
        yield Finding("unknown", "the kernel does not say how much memory is free")
        return
    share = 100 * found["MemAvailable"] / max(1, found["MemTotal"])
    words = f"{space(found['MemAvailable'])} of memory free, of {space(found['MemTotal'])}"
    if found["MemAvailable"] < a.limits["fail"] * MEBI:
        yield Finding("fail", words, f"{a.limits['fail']:g} MiB")
    elif share < a.limits["warn"]:
        yield Finding("warn", words, f"{a.limits['warn']:g} %")


def _compare_available(nodes: Nodes) -> Iterator[Finding]:
    totals = {h: memory(a).get("MemTotal", 0) for h, a in nodes.items() if a.has("memory")}
    middle = median(totals.values()) if totals else 0
    few = [h for h, total in totals.items() if 0 < total < middle * 0.9]
    for host in few:
        words = f"{space(totals[host])} of memory"
        yield Finding("warn", words, f"{space(middle)}, as most nodes have", hosts=(host,))


CGROUPS = Question(
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


def _limit(a: NodeAnswers) -> Iterator[Finding]:
    total = memory(a).get("MemTotal", 0)
    user = re.compile(rf"/user-(?!{int(a.hello['uid'])}\.)\d+\.slice/")
    files = {path: text for path, text in a["limits"].items() if not user.search(path)}
    limits = {int(text): path for path, text in files.items() if re.fullmatch(r"\d{1,20}", text)}
    least = min(limits, default=0)
    if not limits or not total or least >= total:
        yield passed("no cgroup limits memory")
    elif least < total * a.limits["warn"] / 100:
        words = f"a cgroup limits memory to {space(least)} of {space(total)}"
        yield Finding("warn", words, "all of it", see=f"cat {quote(limits[least])}")
    else:
        yield passed(f"a cgroup limits memory to {space(least)}")


def _swap(a: NodeAnswers) -> Iterator[Finding]:
    found = memory(a)
    used = found.get("SwapTotal", 0) - found.get("SwapFree", 0)
    free = 100 * found.get("MemAvailable", 0) / max(1, found.get("MemTotal", 1))
    if used < GIB:
        yield passed("swap is not in use")
    elif free < a.limits["warn"]:
        yield Finding("warn", f"{space(used)} of swap in use while little memory is free", "none")
    else:
        yield passed(f"{space(used)} lie in swap; memory is free")


LEFT = Question("list", {"path": "/dev/shm", "names": "*", "depth": 0, "most": 1000}, 5)
HOUR = 3600


def _shm_leftover(a: NodeAnswers) -> Iterator[Finding]:
    """Whose they are cannot be told from their names: what counts is what they take away."""
    old = [file for file in a["left"] if file["age"] > HOUR]
    total = sum(file["size"] for file in old)
    share = 100 * total / a["shm"]["size"] if a["shm"]["size"] > 0 else 0.0
    if share > a.limits["warn"]:
        words = f"{len(old)} segments older than an hour take {space(total)} of shared memory"
        yield Finding("warn", words, f"less than {a.limits['warn']:g} %")


PLACE = "/dev/shm"


def _shm_size(a: NodeAnswers) -> Iterator[Finding]:
    shm = a["shm"]
    size, free = shm["size"], shm["free"]
    gpu = bool(a["nvidia"])
    ranks = len(a.node.slots)
    words = f"{PLACE} is {space(size)}"
    least = a.limits["gpu" if gpu else "fail"] * MEBI
    if size < least:
        fix = "docker: `--ipc=host` or `--shm-size=16g`" if a["in"] else ""
        yield Finding("fail", words, space(least), fix)
    elif gpu and size < a.limits["warn"] * MEBI * ranks:
        yield Finding("warn", words, f"{space(a.limits['warn'] * MEBI * ranks)} for {ranks} ranks")
    elif free < least / 4:
        yield Finding("warn", f"{words}, with {space(free)} free", "room", "see shm.leftover")
    else:
        yield passed(words)


CHECKS = {
    "mem.available": Check(
        title="memory is free, as much as on the other nodes",
        why="Loading a model, or an optimizer that is offloaded, ends with the kernel's OOM "
        "killer: a rank dies by signal 9 without a word. A node with less than the others dies "
        "first; a missing module shows as less memory.",
        fine="memory is free",
        fix="end what is left over from earlier jobs; if the total is less: see `dmidecode -t "
        "memory`",
        see="free -g",
        source="NHC check_hw_physmem; proc(5), /proc/meminfo",
        ask=lambda scope: {"memory": MEMORY},
        judge=_available,
        compare=_compare_available,
        limits={"fail": 256, "warn": 10},
        limits_mean="MiB that must be free; per cent of all memory that should be",
    ),
    "mem.limit": Check(
        title="no cgroup keeps ranks from the machine's memory",
        why="Beyond a cgroup's limit ranks are killed by signal 9 while the machine has memory "
        "free: with offload that is at the first optimizer step.",
        fix="SLURM: `--mem=0`; docker: without `--memory`; systemd: MemoryMax of user.slice",
        see="cat /sys/fs/cgroup/memory.max",
        source="Linux admin-guide/cgroup-v2, memory.max",
        ask=lambda scope: {"limits": CGROUPS, "memory": MEMORY},
        judge=_limit,
        limits={"warn": 50},
        limits_mean="per cent of the machine's memory below which it warns",
    ),
    "mem.swap": Check(
        title="the node does not swap",
        why="A rank whose memory lies on a disk is a hundred times slower than the others, and all "
        "wait for it.",
        fix="end what takes the memory, then `swapoff -a && swapon -a`",
        see="free -g; vmstat 1 3",
        source="NHC check_hw_swap_free; proc(5), /proc/meminfo",
        ask=lambda scope: {"memory": MEMORY},
        judge=_swap,
        limits={"warn": 20},
        limits_mean="per cent of memory that must be free when swap is in use",
    ),
    "shm.leftover": Check(
        title="earlier jobs left no shared memory behind",
        why="A rank that is killed cannot remove its segments: they take memory until somebody "
        "does, and the next job's do not fit.",
        fine="nothing much is left in shared memory",
        fix="if no job runs there: `rm /dev/shm/nccl-* /dev/shm/torch_*`",
        see="ls -l /dev/shm",
        source="shm_overview(7); facebookresearch/gcm",
        ask=lambda scope: {"left": LEFT, "shm": path_question("/dev/shm")},
        judge=_shm_leftover,
        limits={"warn": 10},
        limits_mean="per cent of /dev/shm above which it warns",
    ),
    "shm.size": Check(
        title="shared memory is large enough",
        tier="gate",
        why="NCCL's ranks on a node, and data loaders' workers, hand data over in /dev/shm. Docker "
        "gives it 64 MiB: `Error while creating shared memory segment`, or a bus error.",
        fix="`mount -o remount,size=50% /dev/shm`",
        see="df -h /dev/shm",
        source="NCCL documentation, troubleshooting: shared memory; DeepSpeed 0.19 env_report "
        "(512 MiB)",
        ask=lambda scope: {"shm": path_question(PLACE), "nvidia": NVIDIA, "in": CONTAINER},
        judge=_shm_size,
        limits={"fail": 128, "gpu": 512, "warn": 1024},
        limits_mean="MiB without GPUs, and with them; and for each rank, below which it warns",
    ),
}
