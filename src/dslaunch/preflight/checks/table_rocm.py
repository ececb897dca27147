"""Checks of AMD GPUs: their number, and what rocm-smi or amd-smi reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dslaunch.plural import counted
from dslaunch.preflight.check import Check, Finding, Level, NodeAnswers, Question, passed, skipped
from dslaunch.preflight.checks import _accelerators as accelerators
from dslaunch.preflight.checks import _rocm as rocm
from dslaunch.preflight.checks._rocm import Told
from dslaunch.preflight.comparison import alike
from dslaunch.preflight.flow import NodeFlow, each


def _driver(told: Told, a: NodeAnswers) -> Iterator[Finding]:
    del a
    yield passed(f"driver {told.driver}" if told.driver else "no driver version reported")


def _links(told: Told, a: NodeAnswers) -> Iterator[Finding]:
    del a
    kinds = Counter(told.links.values())
    if len(told.gpus) < 2:
        yield skipped("one GPU")
    elif not kinds or set(kinds) - {"XGMI", "PCIE"}:
        yield Finding("unknown", "link types cannot be parsed")
    elif len(kinds) == 2:
        slow = ", ".join(f"{x}-{y}" for (x, y), kind in told.links.items() if kind == "PCIE")
        words = f"{counted(kinds['PCIE'], 'pair')} of GPUs over PCIe: {slow[:200]}"
        yield Finding("warn", words, f"XGMI, as for the other {counted(kinds['XGMI'], 'pair')}")
    else:
        yield passed(f"{next(iter(kinds))} between all GPUs")


def _kinds(a: NodeAnswers) -> str:
    kinds = Counter(rocm.told(a).links.values())
    return ", ".join(
        f"{counted(times, 'pair')} over {kind}" for kind, times in sorted(kinds.items())
    )


def _ras(told: Told, a: NodeAnswers) -> Iterator[Finding]:
    for index, gpu in told.gpus.items():
        if gpu.uncorrected:
            yield Finding(
                "fail", f"GPU {index}: {counted(gpu.uncorrected, 'uncorrected error')}", "0"
            )
        elif (gpu.corrected or 0) > a.limits["corrected"]:
            words = f"GPU {index}: {counted(gpu.corrected or 0, 'corrected error')}"
            yield Finding("warn", words, "few")
    untold = [index for index, gpu in told.gpus.items() if gpu.uncorrected is None]
    if untold:
        words = f"{counted(len(untold), 'GPU')} of {len(told.gpus)} report no error counters"
        yield Finding("unknown", words)


def _temperature(told: Told, a: NodeAnswers) -> Iterator[Finding]:
    for index, gpu in told.gpus.items():
        if not gpu.temperatures:
            continue
        sensor = max(gpu.temperatures, key=gpu.temperatures.__getitem__)
        celsius = gpu.temperatures[sensor]
        if celsius >= a.limits["warn"]:
            level: Level = "fail" if celsius >= a.limits["fail"] else "warn"
            words = f"GPU {index}: {celsius:.0f} degrees C ({sensor})"
            yield Finding(level, words, f"below {a.limits['warn']:.0f}")
    untold = [index for index, gpu in told.gpus.items() if not gpu.temperatures]
    if len(untold) == len(told.gpus):
        yield Finding("unknown", "no GPU reports its temperature")


KFD = Question("path", "/dev/kfd")


def _flow_rocm_count(a: NodeAnswers) -> NodeFlow:
    if accelerators.of_vendor(a, "amd") is None:
        return [skipped(rocm.NONE)]
    a = yield {"kfd": KFD}
    kfd = a.found(KFD)
    if kfd is not None and not kfd["writable"]:
        fix = "add the user to the group of /dev/kfd (`usermod -aG render,video USER`)"
        return [Finding("fail", "no permission to open /dev/kfd", "write access", fix)]
    return accelerators.count(a, "amd")


CHECKS = {
    "rocm.driver": Check(
        title="all nodes have the same amdgpu driver",
        why=(
            "RCCL is not tested between releases of the driver, and a training may fail "
            "on some nodes only. Without rocm-smi or amd-smi the other AMD checks cannot "
            "run."
        ),
        fix="install the same release of ROCm and its driver on all nodes",
        see="rocm-smi --showdriverversion; cat /sys/module/amdgpu/version",
        source="ROCm documentation, User and kernel-space support matrix",
        flow=rocm.where_there(
            _driver, compare=alike(lambda a: rocm.told(a).driver, found="driver {value}")
        ),
    ),
    "rocm.links": Check(
        title="AMD GPUs are linked by XGMI",
        why=(
            "A pair of GPUs that lost its XGMI links uses PCIe, several times slower, "
            "and all ranks wait for it."
        ),
        fix=("reboot the node; if the links are still missing, have the board's bridges inspected"),
        see="rocm-smi --showtopo; rocm-smi --showxgmierr",
        source="ROCm documentation, MI200 and MI300 system optimization, Hardware verification",
        flow=rocm.where_there(_links, compare=alike(_kinds)),
    ),
    "rocm.ras": Check(
        title="no uncorrected AMD GPU memory errors",
        why="The next process that uses that memory crashes or computes wrong values.",
        flow=rocm.where_there(_ras, fine="no uncorrected errors"),
        fix="reboot the node, which retires the page; replace the GPU if errors recur",
        see="rocm-smi --showrasinfo all; amd-smi metric --ecc",
        source="Linux, Documentation/gpu/amdgpu/ras.rst; ROCm/rocm_smi_lib#183",
        limits={"corrected": 10_000},
        limits_mean="corrected errors of one GPU above which it warns",
    ),
    "rocm.temperature": Check(
        title="AMD GPU temperatures are normal",
        why=(
            "A GPU that is hot before the training starts is throttled under load and "
            "slows down all others."
        ),
        flow=rocm.where_there(_temperature, fine="cool"),
        fix="check the node's fans and air flow, and which processes use the GPU",
        see="rocm-smi --showtemp",
        source=(
            "ROCm/rocm_smi_lib; AMD Instinct accelerators throttle at about 100 degrees "
            "C junction temperature"
        ),
        limits={"warn": 85, "fail": 100},
        limits_mean="degrees C of the hottest sensor at which it warns and fails",
    ),
    "rocm.count": Check(
        title="nodes have as many AMD GPUs as slots",
        tier="gate",
        why=(
            "A rank without a GPU fails at start. Without access to /dev/kfd PyTorch "
            "finds no GPU and silently trains on the CPU."
        ),
        fix=(
            "look for errors in `dmesg | grep -i amdgpu`; correct `slots:` if the node "
            "has fewer GPUs"
        ),
        see="ls -l /dev/kfd; rocm-smi",
        source="ROCm documentation, Configuring permissions for GPU access; Linux, amdkfd",
        flow=each(_flow_rocm_count, accelerators.ask),
    ),
}
