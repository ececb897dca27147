"""Errors of AMD GPUs that their RAS blocks have counted."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.plural import counted
from dslaunch.preflight.check import Answers, Check, Verdict, passed
from dslaunch.preflight.checks import _accelerators as accelerators
from dslaunch.preflight.checks import _rocm as rocm
from dslaunch.preflight.checks._rocm import Told


def _judge(told: Told, a: Answers) -> Iterator[Verdict]:
    bad = False
    for index, gpu in told.gpus.items():
        if gpu.uncorrected:
            bad = True
            yield Verdict(
                "fail", f"GPU {index}: {counted(gpu.uncorrected, 'uncorrected error')}", "0"
            )
        elif (gpu.corrected or 0) > a.limits["corrected"]:
            bad = True
            words = f"GPU {index}: {counted(gpu.corrected or 0, 'corrected error')}"
            yield Verdict("warn", words, "few")
    untold = [index for index, gpu in told.gpus.items() if gpu.uncorrected is None]
    if untold:
        words = f"{counted(len(untold), 'GPU')} of {len(told.gpus)} without error counts"
        yield Verdict("unknown", words)
    elif not bad:
        yield passed("no uncorrected errors")


CHECK = Check(
    title="AMD GPUs have no uncorrected memory errors",
    tier="static",
    why="The next process that touches that memory crashes, or computes with wrong values.",
    fix="reboot the node, which retires the page; replace the GPU if errors come back",
    see="rocm-smi --showrasinfo all; amd-smi metric --ecc",
    source="Linux, Documentation/gpu/amdgpu/ras.rst; ROCm/rocm_smi_lib#183",
    ask=accelerators.ask,
    flow=rocm.where_there(_judge),
    limits={"corrected": 10_000},
    limits_mean="corrected errors of one GPU above which it warns",
)
