"""Whether GPUs are cut into parts."""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.preflight.check import Check
from dslaunch.preflight.checks import _nvidia as nvidia


def _gpu(gpu: nvidia.Gpu, limits: Mapping[str, float]) -> nvidia.Said | None:
    del limits
    now, next_ = (
        gpu.word(f"mig.mode.{when}", "Enabled", "Disabled") for when in ("current", "pending")
    )
    if now == "Enabled":
        return "fail", "MIG is enabled"
    if next_ is not None and next_ != now:
        return "warn", f"MIG is {now}, and will be {next_} after a reset"
    return None


CHECK = Check(
    title="GPUs are whole",
    tier="static",
    why="NCCL does not work between the parts of one GPU, and has no NVLink to others.",
    fix="`nvidia-smi -mig 0`, or set `preflight.severity` for gpu.mig to info if that is meant",
    see="nvidia-smi --query-gpu=index,mig.mode.current --format=csv",
    source="NVIDIA MIG user guide, limitations",
    ask=nvidia.ask,
    then=nvidia.then(),
    judge=nvidia.each_gpu(_gpu, "MIG is off", expected="disabled", needs=("mig.mode.current",)),
)
