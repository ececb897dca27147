"""Rows of GPU memory that were replaced by spare ones."""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.preflight.check import Check
from dslaunch.preflight.checks import _nvidia as nvidia


def _gpu(gpu: nvidia.Gpu, limits: Mapping[str, float]) -> nvidia.Said | None:
    if gpu.on("remapped_rows.failure"):
        return "fail", "a row of memory could not be replaced"
    if gpu.on("remapped_rows.pending"):
        return "fail", "a row of memory waits for a reset to be replaced"
    rows = gpu.number("remapped_rows.uncorrectable")
    if rows is not None and rows >= limits["fail"]:
        return "fail", f"{rows:.0f} rows of memory replaced"
    return None


CHECK = Check(
    title="GPU memory needs no repair",
    tier="gate",
    why="A row that failed is in use until the GPU is reset; one that could not be replaced fails "
    "again. Both end a training at some later step.",
    fix="reset the GPU (`nvidia-smi -r -i GPU`) or reboot; have it replaced after a failed "
    "remapping",
    see="nvidia-smi -q -d ROW_REMAPPER",
    source="NVIDIA DCGM (DCGM_LIMIT_MAX_ROW_REMAP_UNCORRECTABLE 512); facebookresearch/gcm",
    ask=nvidia.ask,
    then=nvidia.then(),
    judge=nvidia.each_gpu(
        _gpu,
        "no row waits",
        expected="none pending, none failed",
        needs=("remapped_rows.failure", "remapped_rows.pending"),
    ),
    limits={"fail": 512},
    limits_mean="replaced rows from which it fails",
)
