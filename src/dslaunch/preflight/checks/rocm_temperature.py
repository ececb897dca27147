"""Whether AMD GPUs are too hot before they work."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Level, Verdict, passed
from dslaunch.preflight.checks import _accelerators as accelerators
from dslaunch.preflight.checks import _rocm as rocm
from dslaunch.preflight.checks._rocm import Told


def _judge(told: Told, a: Answers) -> Iterator[Verdict]:
    warm = False
    for index, gpu in told.gpus.items():
        if not gpu.temperatures:
            continue
        sensor = max(gpu.temperatures, key=gpu.temperatures.__getitem__)
        celsius = gpu.temperatures[sensor]
        if celsius >= a.limits["warn"]:
            warm = True
            level: Level = "fail" if celsius >= a.limits["fail"] else "warn"
            words = f"GPU {index}: {celsius:.0f} degrees C ({sensor})"
            yield Verdict(level, words, f"below {a.limits['warn']:.0f}")
    untold = [index for index, gpu in told.gpus.items() if not gpu.temperatures]
    if len(untold) == len(told.gpus):
        yield Verdict("unknown", "no GPU tells its temperature")
    elif not warm:
        yield passed("cool")


CHECK = Check(
    title="AMD GPUs are cool enough",
    tier="static",
    why="A GPU that is warm before the training starts slows down when it works, and holds all "
    "others up.",
    fix="look at the node's fans and air flow, and at who uses the GPU now",
    see="rocm-smi --showtemp",
    source="ROCm/rocm_smi_lib; AMD Instinct accelerators slow down at about 100 degrees C junction",
    ask=accelerators.ask,
    flow=rocm.where_there(_judge),
    limits={"warn": 85, "fail": 100},
    limits_mean="degrees C of the hottest sensor from which it warns and fails",
)
