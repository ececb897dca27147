"""Whether GPUs may draw the power that they are made for."""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.preflight.check import Check
from dslaunch.preflight.checks import _nvidia as nvidia


def _gpu(gpu: nvidia.Gpu, limits: Mapping[str, float]) -> nvidia.Said | None:
    now, usual = gpu.number("enforced.power.limit"), gpu.number("power.default_limit")
    if now is None or usual is None or now >= usual * (1 - limits["warn"] / 100):
        return None
    return "warn", f"limited to {now:.0f} W of {usual:.0f} W"


CHECK = Check(
    title="GPUs may draw their full power",
    tier="static",
    why="A GPU with a lower limit is slower than the others, which wait for it.",
    fix="`nvidia-smi -pl WATTS`; see whether the chassis limits it (`nvidia-smi -q -d POWER`)",
    see="nvidia-smi --query-gpu=index,enforced.power.limit,power.default_limit --format=csv",
    source="nvidia-smi(1), Enforced Power Limit",
    ask=nvidia.ask,
    then=nvidia.then(),
    judge=nvidia.each_gpu(
        _gpu, "full power", expected="the default limit", needs=("enforced.power.limit",)
    ),
    limits={"warn": 2},
    limits_mean="per cent below the default limit from which it warns",
)
