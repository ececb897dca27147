"""How far GPUs are from the temperature at which they slow down."""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.preflight.check import Check, Level
from dslaunch.preflight.checks import _nvidia as nvidia


def _gpu(gpu: nvidia.Gpu, limits: Mapping[str, float]) -> nvidia.Said | None:
    left = gpu.number("temperature.gpu.tlimit")
    if left is not None and left < limits["warn"]:
        level: Level = "fail" if left < limits["fail"] else "warn"
        return level, f"{left:.0f} degrees C below its limit"
    now = gpu.number("temperature.gpu")
    if left is None and now is not None and now >= limits["celsius"]:
        return "warn", f"{now:.0f} degrees C"
    return None


CHECK = Check(
    title="GPUs are cool enough",
    tier="static",
    why="A GPU that is warm before the training starts slows down when it works, and holds all "
    "others up.",
    fix="look at the node's fans and air flow, and at who uses the GPU now",
    see="nvidia-smi -q -d TEMPERATURE",
    source="nvidia-smi(1), GPU T.Limit; facebookresearch/gcm (84)",
    ask=nvidia.ask,
    then=nvidia.then(),
    judge=nvidia.each_gpu(
        _gpu,
        "cool",
        expected="at least 10 degrees C below the limit",
        needs=("temperature.gpu.tlimit", "temperature.gpu"),
    ),
    limits={"warn": 10, "fail": 3, "celsius": 84},
    limits_mean="degrees C to the limit below which it warns and fails; `celsius`: for GPUs that "
    "do not tell their limit",
)
