"""Whether GPUs have all lanes and the full speed of their PCIe link."""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.preflight.check import Check
from dslaunch.preflight.checks import _nvidia as nvidia

_STATES = tuple(f"P{at}" for at in range(16))


def _gpu(gpu: nvidia.Gpu, limits: Mapping[str, float]) -> nvidia.Said | None:
    del limits
    now, most = gpu.number("pcie.link.width.current"), gpu.number("pcie.link.width.max")
    if now is not None and most is not None and now < most:
        return "fail", f"{now:.0f} of {most:.0f} PCIe lanes"
    now, most = gpu.number("pcie.link.gen.current"), gpu.number("pcie.link.gen.max")
    # a GPU that sleeps lowers its link's speed; those in P0 do not
    if now is not None and most is not None and now < most and gpu.word("pstate", *_STATES) == "P0":
        return "warn", f"PCIe generation {now:.0f} of {most:.0f}"
    return None


CHECK = Check(
    title="GPUs have their full PCIe link",
    tier="static",
    why="Offloading and GPUDirect RDMA run at half speed over half the lanes. One such GPU holds "
    "up all others.",
    fix="reseat the card or riser; see the BIOS for the slot's bifurcation and link speed",
    see="nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.gen.max,"
    "pcie.link.width.current,pcie.link.width.max --format=csv",
    source="AzureHPC health checks; leptonai/gpud",
    ask=nvidia.ask,
    then=nvidia.then(),
    judge=nvidia.each_gpu(
        _gpu,
        "full PCIe link",
        expected="all lanes at full speed",
        needs=("pcie.link.width.current",),
    ),
)
