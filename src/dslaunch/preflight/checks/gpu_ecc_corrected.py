"""Errors of GPU memory that were corrected."""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.preflight.check import Check
from dslaunch.preflight.checks import _nvidia as nvidia


def _gpu(gpu: nvidia.Gpu, limits: Mapping[str, float]) -> nvidia.Said | None:
    for part in ("sram", "dram"):
        errors = gpu.number(f"ecc.errors.corrected.volatile.{part}")
        if errors is not None and errors > limits[part]:
            return "warn", f"{errors:.0f} corrected {part.upper()} errors since its start"
    return None


CHECK = Check(
    title="GPU memory has few corrected errors",
    tier="static",
    why="Corrected errors do no harm by themselves. Very many of them precede those that cannot "
    "be corrected.",
    fix="watch the GPU; swap it when it is convenient",
    see="nvidia-smi -q -d ECC",
    source="AzureHPC health checks (10,000 and 20,000,000); facebookresearch/gcm",
    ask=nvidia.ask,
    then=nvidia.then(),
    judge=nvidia.each_gpu(
        _gpu,
        "few corrected errors",
        expected="few",
        needs=("ecc.errors.corrected.volatile.sram", "ecc.errors.corrected.volatile.dram"),
    ),
    limits={"sram": 10_000, "dram": 20_000_000},
    limits_mean="corrected errors since the driver was loaded, above which it warns",
)
