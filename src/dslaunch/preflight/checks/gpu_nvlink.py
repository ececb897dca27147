"""Whether all NVLinks of the GPUs are up, at full speed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from dslaunch.preflight.check import Answers, Check, UnansweredError, Verdict, passed, skipped
from dslaunch.preflight.checks import _nvidia as nvidia

_GPU = re.compile(r"^GPU (\d{1,4}): ")
_LINK = re.compile(r"^\s+Link (\d{1,3}): (?:(\d{1,9}(?:\.\d{1,9})?) GB/s|<inactive>)\s*$")


def _judge(a: Answers) -> Iterator[Verdict]:
    from dslaunch.topology.inventory import link_speeds, without_uuids

    text = without_uuids(a.value(nvidia.NVLINK)["out"])
    found = link_speeds(text)
    if not any(found.values()):
        yield from _without(a)
        return
    known = {gpu.index: gpu.name for gpu in nvidia.gpus(a)}
    if known.keys() != found.keys() or _damaged(text) or len({*map(len, found.values())}) > 1:
        raise UnansweredError("`nvidia-smi nvlink -s` cannot be read whole")
    most = max(sum(speed > 0 for speed in of.values()) for of in found.values())
    fastest = max(speed for of in found.values() for speed in of.values())
    fine = True
    for index, of in found.items():
        down = [number for number, speed in of.items() if not speed]
        slow = [number for number, speed in of.items() if 0 < speed < fastest]
        if down and _should(known.get(index, ""), len(of) - len(down), most):
            fine = False
            words = (
                f"GPU {index}: {len(down)} of {len(of)} NVLinks inactive ({nvidia.listed(down)})"
            )
            yield Verdict("fail", words, "all active")
        if slow:
            fine = False
            words = f"GPU {index}: NVLink {nvidia.listed(slow)} slower than the others"
            yield Verdict("warn", words, f"{fastest:g} GB/s")
    if fine:
        yield passed(f"{most} NVLinks active" if most else "no NVLink bridge")


@lru_cache(maxsize=64)
def _damaged(text: str) -> bool:
    """Whether a line is neither a GPU nor a link, or has no end."""
    lines = [line for line in text.splitlines() if line.strip()]
    return not text.endswith("\n") or not all(_LINK.match(x) or _GPU.match(x) for x in lines)


def _without(a: Answers) -> Iterator[Verdict]:
    names = [gpu.name for gpu in nvidia.gpus(a)]
    if "not supported for Devices in MIG mode" in a.value(nvidia.NVLINK)["out"]:
        yield skipped("MIG is enabled")
    elif len(names) > 1 and any(map(nvidia.meshed, names)):
        raise UnansweredError("`nvidia-smi nvlink -s` names no links of GPUs that have some")
    else:
        yield skipped("no NVLink")


def _should(name: str, active: int, most: int) -> bool:
    """Whether inactive links are a fault: always on SXM boards; on cards, which need bridges, if
    another card of the node has more."""
    return nvidia.meshed(name) or 0 < active < most


CHECK = Check(
    title="all NVLinks are up",
    tier="static",
    why="With a link down NCCL is slower, or goes over PCIe; on boards with NVSwitch CUDA may not "
    "start at all.",
    fix="reset the GPUs or reboot; restart nvidia-fabricmanager; have the board looked at",
    see="nvidia-smi nvlink -s",
    source="NVIDIA health validation (max_inactive_nvlinks 0); imbue-ai/cluster-health",
    ask=nvidia.ask,
    flow=nvidia.where_up(_judge, nvlink=nvidia.NVLINK),
)
