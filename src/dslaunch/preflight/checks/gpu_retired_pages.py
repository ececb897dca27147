"""Pages of memory that GPUs before Ampere have taken out of use."""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.preflight.check import Check
from dslaunch.preflight.checks import _nvidia as nvidia


def _gpu(gpu: nvidia.Gpu, limits: Mapping[str, float]) -> nvidia.Said | None:
    if gpu.on("retired_pages.pending"):
        return "fail", "a page of memory waits for a reset to be retired"
    single = gpu.number("retired_pages.single_bit_ecc.count")
    double = gpu.number("retired_pages.double_bit.count")
    total = (single or 0) + (double or 0)
    if total >= limits["fail"]:
        return "fail", f"{total:.0f} retired pages"
    if (double or 0) > limits["warn"]:
        return "warn", f"{double:.0f} pages retired for errors that could not be corrected"
    return None


CHECK = Check(
    title="few pages of GPU memory are retired",
    tier="static",
    why="A GPU can retire 64 pages; then it must be replaced, and a page that waits for its "
    "retirement is still in use.",
    fix="reset the GPU or reboot; have it replaced at the limit",
    see="nvidia-smi -q -d PAGE_RETIREMENT",
    source="NVIDIA DCGM (63 pages, 15 of them double-bit); AzureHPC health checks",
    ask=nvidia.ask,
    then=nvidia.then(),
    judge=nvidia.each_gpu(
        _gpu,
        "few retired pages",
        expected="none pending",
        needs=("retired_pages.pending", "retired_pages.double_bit.count"),
    ),
    limits={"fail": 63, "warn": 15},
    limits_mean="retired pages from which it fails; pages with double-bit errors above which it "
    "warns",
)
