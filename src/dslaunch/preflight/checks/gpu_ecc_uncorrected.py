"""Errors of GPU memory that could not be corrected."""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.plural import counted
from dslaunch.preflight.check import Check
from dslaunch.preflight.checks import _nvidia as nvidia


def _gpu(gpu: nvidia.Gpu, limits: Mapping[str, float]) -> nvidia.Said | None:
    del limits
    errors = gpu.number("ecc.errors.uncorrected.volatile.total")
    if not errors:
        return None
    return "fail", f"{counted(round(errors), 'uncorrected memory error')} since its start"


CHECK = Check(
    title="GPU memory has no uncorrected errors",
    tier="gate",
    why="The next process that touches that memory crashes, or computes with wrong values. Memory "
    "of GPUs was the second most frequent cause of interruption of Llama 3 405B (17 %).",
    fix="reset the GPU (`nvidia-smi -r -i GPU`) or reboot, which remaps the row; replace the GPU "
    "if errors come back",
    see="nvidia-smi -q -d ECC",
    source="The Llama 3 Herd of Models, 2024, table 5; facebookresearch/gcm",
    ask=nvidia.ask,
    then=nvidia.then(),
    judge=nvidia.each_gpu(
        _gpu,
        "no uncorrected errors",
        expected="0",
        needs=("ecc.errors.uncorrected.volatile.total",),
    ),
)
