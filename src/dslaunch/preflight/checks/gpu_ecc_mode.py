"""Whether GPUs made for servers correct errors of their memory."""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.preflight.check import Check
from dslaunch.preflight.checks import _nvidia as nvidia


def _gpu(gpu: nvidia.Gpu, limits: Mapping[str, float]) -> nvidia.Said | None:
    del limits
    now, next_ = (
        gpu.word(f"ecc.mode.{when}", "Enabled", "Disabled") for when in ("current", "pending")
    )
    if now != next_:
        return "fail", f"ECC is {now}, and will be {next_} after a reset"
    if now == "Disabled" and nvidia.data_centre(gpu.name):
        return "warn", "ECC is disabled"
    return None


CHECK = Check(
    title="GPU memory is protected by ECC",
    tier="static",
    why="Without ECC a flipped bit becomes a wrong gradient that nobody notices.",
    fix="`nvidia-smi -e 1`, then reset the GPU or reboot the node",
    see="nvidia-smi --query-gpu=index,ecc.mode.current,ecc.mode.pending --format=csv",
    source="imbue-ai/cluster-health",
    ask=nvidia.ask,
    then=nvidia.then(),
    judge=nvidia.each_gpu(
        _gpu, "ECC as it should be", expected="enabled", needs=("ecc.mode.current",)
    ),
)
