"""Whether the ROCm tools answer, and all nodes have the same amdgpu driver."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Verdict, passed
from dslaunch.preflight.checks import _accelerators as accelerators
from dslaunch.preflight.checks import _rocm as rocm
from dslaunch.preflight.checks._alike import alike
from dslaunch.preflight.checks._rocm import Told


def _judge(told: Told, a: Answers) -> Iterator[Verdict]:
    del a
    yield passed(f"driver {told.driver}" if told.driver else "the tools answer, without a version")


CHECK = Check(
    title="the ROCm tools answer, and all nodes have the same amdgpu driver",
    tier="static",
    why="RCCL is not tested between releases of the driver, and a training may fail on some nodes "
    "only. Without rocm-smi or amd-smi nothing else of the GPUs can be checked.",
    fix="install the same release of ROCm and its driver on all nodes",
    see="rocm-smi --showdriverversion; cat /sys/module/amdgpu/version",
    source="ROCm documentation, User and kernel-space support matrix",
    ask=accelerators.ask,
    flow=rocm.where_there(_judge),
    compare=alike(lambda a: rocm.told(a).driver, found="driver {value}"),
)
