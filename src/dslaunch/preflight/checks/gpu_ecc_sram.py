"""Errors of a GPU's on-chip memory over its whole life."""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.plural import counted
from dslaunch.preflight.check import Check
from dslaunch.preflight.checks import _nvidia as nvidia


def _gpu(gpu: nvidia.Gpu, limits: Mapping[str, float]) -> nvidia.Said | None:
    del limits
    if gpu.on("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded"):
        return "fail", "uncorrected SRAM errors beyond the maker's threshold"
    errors = gpu.number("ecc.errors.uncorrected.aggregate.sram")
    if errors:
        return "warn", f"{counted(round(errors), 'uncorrected SRAM error')} in its life"
    return None


CHECK = Check(
    title="GPU on-chip memory is sound",
    tier="static",
    why="On-chip memory has no spare rows: a GPU with such errors gets more of them, and NVIDIA "
    "replaces it beyond a threshold.",
    fix="have the GPU replaced if the threshold is exceeded; else watch whether the number grows",
    see="nvidia-smi -q -d ECC",
    source="NVIDIA GPU memory error management; AzureHPC health checks",
    ask=nvidia.ask,
    then=nvidia.then(),
    judge=nvidia.each_gpu(
        _gpu,
        "no SRAM errors",
        expected="0",
        needs=(
            "ecc.errors.uncorrected.aggregate.sram",
            "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
        ),
    ),
)
