"""What the driver itself says must be done with a GPU."""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.preflight.check import Check
from dslaunch.preflight.checks import _nvidia as nvidia


def _gpu(gpu: nvidia.Gpu, limits: Mapping[str, float]) -> nvidia.Said | None:
    del limits
    action = gpu.text("gpu_recovery_action")
    return None if action in (None, "None") else ("fail", f"the driver wants: {action}")


CHECK = Check(
    title="the driver wants no GPU reset",
    tier="gate",
    why="The driver's own verdict: after an error that it cannot mend it asks for a reset of the "
    "GPU, a reboot or a drain. Until then work on that GPU fails or hangs.",
    fix="do what it says: `nvidia-smi -r -i GPU`, or reboot the node",
    see="nvidia-smi --query-gpu=index,gpu_recovery_action --format=csv",
    source="nvidia-smi(1), GPU Recovery Action (driver 570 and later)",
    ask=nvidia.ask,
    then=nvidia.then(),
    judge=nvidia.each_gpu(
        _gpu, "no action wanted", expected="None", needs=("gpu_recovery_action",)
    ),
)
