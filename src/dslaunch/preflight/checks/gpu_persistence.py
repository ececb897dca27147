"""Whether the driver stays loaded while nobody uses the GPUs."""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.preflight.check import Check
from dslaunch.preflight.checks import _nvidia as nvidia


def _gpu(gpu: nvidia.Gpu, limits: Mapping[str, float]) -> nvidia.Said | None:
    del limits
    return ("warn", "persistence mode is off") if gpu.on("persistence_mode") is False else None


CHECK = Check(
    title="the driver stays initialised",
    tier="static",
    why="Else every process that comes first waits seconds for each GPU, settings such as power "
    "limits are lost, and nvidia-smi itself is slow.",
    fix="start nvidia-persistenced (`systemctl enable --now nvidia-persistenced`), or `nvidia-smi "
    "-pm 1`",
    see="nvidia-smi --query-gpu=index,persistence_mode --format=csv",
    source="NVIDIA driver persistence documentation; AzureHPC health checks",
    ask=nvidia.ask,
    then=nvidia.then(),
    judge=nvidia.each_gpu(
        _gpu, "persistence mode is on", expected="on", needs=("persistence_mode",)
    ),
)
