"""Whether processes may use the GPUs."""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.preflight.check import Check
from dslaunch.preflight.checks import _nvidia as nvidia

EXCLUSIVE = ("Exclusive_Process", "Exclusive_Thread")


def _gpu(gpu: nvidia.Gpu, limits: Mapping[str, float]) -> nvidia.Said | None:
    del limits
    mode = gpu.word("compute_mode", "Default", "Prohibited", *EXCLUSIVE)
    if mode == "Prohibited":
        return "fail", "compute mode Prohibited: nobody may use it"
    if mode in EXCLUSIVE:
        return "info", f"compute mode {mode}: one process at a time"
    return None


CHECK = Check(
    title="processes may use the GPUs",
    tier="static",
    why="A prohibited GPU cannot be used at all; an exclusive one only by one process: data "
    "loaders that touch the GPU fail.",
    fix="`nvidia-smi -c 0`",
    see="nvidia-smi --query-gpu=index,compute_mode --format=csv",
    source="nvidia-smi(1), Compute Mode; facebookresearch/gcm",
    ask=nvidia.ask,
    then=nvidia.then(),
    judge=nvidia.each_gpu(
        _gpu, "compute mode Default", expected="Default", needs=("compute_mode",)
    ),
)
