"""Checks of the memory of a node, and of what its processes share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from statistics import median

from dslaunch.preflight.check import Check, Finding, NodeAnswers, Nodes, Question, passed
from dslaunch.preflight.checks._machine import (
    CONTAINER,
    GIB,
    MEMORY,
    NVIDIA,
    memory,
    path_question,
    path_word,
    space,
)
from dslaunch.preflight.comparison import read_of_answering
from dslaunch.preflight.flow import NodeFlow, each, judged

MEBI = 1 << 20


def _available(a: NodeAnswers) -> Iterator[Finding]:
    found = memory(a)
    if "MemTotal" not in found or "MemAvailable" not in found:
        yield Finding("unknown", "free memory not reported")
        return
    share = 100 * found["MemAvailable"] / max(1, found["MemTotal"])
    words = f"{space(found['MemAvailable'])} of {space(found['MemTotal'])} memory free"
    if found["MemAvailable"] < a.limits["fail"] * MEBI:
        yield Finding("fail", words, f"{a.limits['fail']:g} MiB")
    elif share < a.limits["warn"]:
        yield Finding("warn", words, f"{a.limits['warn']:g} %")


def _compare_available(nodes: Nodes) -> Iterator[Finding]:
    totals = read_of_answering(nodes, lambda a: memory(a).get("MemTotal", 0))
    middle = median(totals.values()) if totals else 0
    few = [h for h, total in totals.items() if 0 < total < middle * 0.9]
    for host in few:
        words = f"{space(totals[host])} of memory"
        yield Finding("warn", words, f"{space(middle)}, as on most nodes", hosts=(host,))


CGROUP = Question("read", ["/proc/self/cgroup"])
LIMIT_FILES = {
    "": ("/sys/fs/cgroup", "memory.max"),
    "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
}
"""By the controller in a line of /proc/self/cgroup, which is empty for cgroup v2: where its groups
are, and the file of a group that has its limit."""
MOST_LEVELS = 64
"""Groups above each other that are read: SLURM and Kubernetes have less than ten."""


def limit_files(text: str) -> list[str]:
    """Return the files with the memory limits of a process's cgroup and of all groups above it.

    `text`: its /proc/self/cgroup, a line `hierarchy:controllers:group` for each hierarchy;
    cgroups(7). In a container the groups above may not be there.
    """
    # a process is in one group of a hierarchy: more than one line for it come from no kernel
    group_of: dict[str, str] = {}
    for line in text.splitlines():
        _, *rest = line.split(":", 2)
        if len(rest) != 2:
            continue
        controllers, group = rest
        for controller in controllers.split(","):
            if controller in LIMIT_FILES:
                group_of.setdefault(controller, group)
    return [
        file
        for controller, group in group_of.items()
        for file in _upward(*LIMIT_FILES[controller], group)
    ]


def _upward(root: str, file: str, group: str) -> Iterator[str]:
    """Yield the file of each group on the way from the root to a group."""
    names = [name for name in group.split("/") if name]
    # a group outside of the root that this container sees begins with `..`
    inside = [] if ".." in names else names[:MOST_LEVELS]
    for depth in range(len(inside) + 1):
        yield "/".join((root, *inside[:depth], file))


def _flow_limit(a: NodeAnswers) -> NodeFlow:
    files = limit_files(a["cgroup"].get(CGROUP.argument[0], ""))
    if not files:
        return [Finding("unknown", "cgroup of the session not reported")]
    limits = Question("read", files)
    a = yield {"limits": limits}
    return _limit(a, a.value(limits))


def _limit(a: NodeAnswers, files: Mapping[str, str]) -> Iterator[Finding]:
    total = memory(a).get("MemTotal", 0)
    limits = {int(text): path for path, text in files.items() if re.fullmatch(r"\d{1,20}", text)}
    least = min(limits, default=0)
    if not limits or not total or least >= total:
        yield passed("no cgroup memory limit")
    elif least < total * a.limits["warn"] / 100:
        words = f"cgroup memory limit {space(least)} of {space(total)}"
        yield Finding("warn", words, "no limit", see=f"cat {path_word(limits[least])}")
    else:
        yield passed(f"cgroup memory limit {space(least)}")


def _swap(a: NodeAnswers) -> Iterator[Finding]:
    found = memory(a)
    used = found.get("SwapTotal", 0) - found.get("SwapFree", 0)
    free = 100 * found.get("MemAvailable", 0) / max(1, found.get("MemTotal", 1))
    if used < GIB:
        yield passed("no swap in use")
    elif free < a.limits["warn"]:
        yield Finding("warn", f"{space(used)} of swap in use, and little free memory", "none")
    else:
        yield passed(f"{space(used)} of swap in use, and enough free memory")


LEFT = Question("list", {"path": "/dev/shm", "names": "*", "depth": 0, "most": 1000}, 5)
HOUR = 3600


def _shm_leftover(a: NodeAnswers) -> Iterator[Finding]:
    """Their names do not show their owner: the memory that they use counts."""
    old = [file for file in a["left"] if file["age"] > HOUR]
    total = sum(file["size"] for file in old)
    share = 100 * total / a["shm"]["size"] if a["shm"]["size"] > 0 else 0.0
    if share > a.limits["warn"]:
        words = f"{len(old)} shared memory segments older than an hour use {space(total)}"
        yield Finding("warn", words, f"less than {a.limits['warn']:g} %")


PLACE = "/dev/shm"


def _shm_size(a: NodeAnswers) -> Iterator[Finding]:
    shm = a["shm"]
    size, free = shm["size"], shm["free"]
    gpu = bool(a["nvidia"])
    ranks = len(a.kind.slots)
    words = f"{PLACE} is {space(size)}"
    least = a.limits["gpu" if gpu else "fail"] * MEBI
    if size < least:
        fix = "docker: set `--ipc=host` or `--shm-size=16g`" if a["in"] else ""
        yield Finding("fail", words, space(least), fix)
    elif gpu and size < a.limits["warn"] * MEBI * ranks:
        yield Finding("warn", words, f"{space(a.limits['warn'] * MEBI * ranks)} for {ranks} ranks")
    elif free < least / 4:
        yield Finding("warn", f"{words}, {space(free)} free", "room", "see shm.leftover")
    else:
        yield passed(words)


CHECKS = {
    "mem.available": Check(
        title="enough free memory, as on the other nodes",
        why=(
            "Loading a model, or an offloaded optimizer, triggers the kernel's "
            "out-of-memory killer: a rank is killed by signal 9 without a message. A "
            "node with less memory than the others fails first; a missing DIMM shows as "
            "less memory."
        ),
        flow=judged(
            _available,
            lambda scope: {"memory": MEMORY},
            fine="enough free memory",
            compare=_compare_available,
        ),
        fix=(
            "end processes left by earlier jobs; if the total is too small, check "
            "`dmidecode -t memory`"
        ),
        see="free -g",
        source="NHC check_hw_physmem; proc(5), /proc/meminfo",
        limits={"fail": 256, "warn": 10},
        limits_mean=(
            "MiB of free memory below which it fails; per cent of free memory below which it warns"
        ),
    ),
    "mem.limit": Check(
        title="no cgroup limits the memory of ranks",
        why=(
            "At a cgroup's memory limit ranks are killed by signal 9 while the machine "
            "has free memory: with offload at the first optimizer step."
        ),
        fix=("SLURM: `--mem=0`; docker: remove `--memory`; systemd: MemoryMax of user.slice"),
        see="cat /proc/self/cgroup /sys/fs/cgroup/memory.max",
        source="Linux admin-guide/cgroup-v2, memory.max",
        flow=each(_flow_limit, lambda scope: {"cgroup": CGROUP, "memory": MEMORY}),
        limits={"warn": 50},
        limits_mean="per cent of the machine's memory below which it warns",
    ),
    "mem.swap": Check(
        title="the nodes are not swapping",
        why=(
            "A rank whose memory is swapped out is a hundred times slower than the "
            "others, and all wait for it."
        ),
        fix="end the processes that use the memory, then run `swapoff -a && swapon -a`",
        see="free -g; vmstat 1 3",
        source="NHC check_hw_swap_free; proc(5), /proc/meminfo",
        flow=judged(_swap, lambda scope: {"memory": MEMORY}),
        limits={"warn": 20},
        limits_mean="per cent of free memory below which it warns if swap is in use",
    ),
    "shm.leftover": Check(
        title="no shared memory left by earlier jobs",
        why=(
            "A killed rank cannot remove its shared memory segments: they use memory "
            "until they are removed, and those of the next job may not fit."
        ),
        flow=judged(
            _shm_leftover,
            lambda scope: {"left": LEFT, "shm": path_question("/dev/shm")},
            fine="no old shared memory segments",
        ),
        fix="if no job runs on the node: `rm /dev/shm/nccl-* /dev/shm/torch_*`",
        see="ls -l /dev/shm",
        source="shm_overview(7); facebookresearch/gcm",
        limits={"warn": 10},
        limits_mean="per cent of /dev/shm above which it warns",
    ),
    "shm.size": Check(
        title="shared memory is large enough",
        tier="gate",
        why=(
            "NCCL's ranks on a node and the workers of data loaders exchange data in "
            "/dev/shm. Docker's default is 64 MiB: `Error while creating shared memory "
            "segment`, or a bus error."
        ),
        fix="run `mount -o remount,size=50% /dev/shm`",
        see="df -h /dev/shm",
        source="NCCL documentation, troubleshooting: shared memory; DeepSpeed 0.19 env_report "
        "(512 MiB)",
        flow=judged(
            _shm_size,
            lambda scope: {"shm": path_question(PLACE), "nvidia": NVIDIA, "in": CONTAINER},
        ),
        limits={"fail": 128, "gpu": 512, "warn": 1024},
        limits_mean=(
            "MiB below which it fails, without and with GPUs; MiB per rank below which it warns, "
            "with GPUs"
        ),
    ),
}
