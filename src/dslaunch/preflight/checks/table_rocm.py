"""Checks of AMD GPUs: their number, and what rocm-smi or amd-smi tells of them."""

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
    yield passed(f"driver {told.driver}" if told.driver else "the tools answer, without a version")


def _links(told: Told, a: NodeAnswers) -> Iterator[Finding]:
    del a
    kinds = Counter(told.links.values())
    if len(told.gpus) < 2:
        yield skipped("one GPU")
    elif not kinds or set(kinds) - {"XGMI", "PCIE"}:
        yield Finding("unknown", "the link types cannot be read")
    elif len(kinds) == 2:
        slow = ", ".join(f"{x}-{y}" for (x, y), kind in told.links.items() if kind == "PCIE")
        words = f"{counted(kinds['PCIE'], 'pair')} of GPUs over PCIe: {slow[:200]}"
        yield Finding("warn", words, f"XGMI as the other {counted(kinds['XGMI'], 'pair')}")
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
        words = f"{counted(len(untold), 'GPU')} of {len(told.gpus)} without error counts"
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
        yield Finding("unknown", "no GPU tells its temperature")


KFD = Question("path", "/dev/kfd")


def _flow_rocm_count(a: NodeAnswers) -> NodeFlow:
    if accelerators.of_vendor(a, "amd") is None:
        return [skipped(rocm.NONE)]
    a = yield {"kfd": KFD}
    kfd = a.found(KFD)
    if kfd is not None and not kfd["writable"]:
        fix = "add the user to the group of /dev/kfd (`usermod -aG render,video USER`)"
        return [Finding("fail", "/dev/kfd cannot be opened by this user", "write access", fix)]
    return accelerators.count(a, "amd")


CHECKS = {
    "rocm.driver": Check(
        title="the ROCm tools answer, and all nodes have the same amdgpu driver",
        why="RCCL is not tested between releases of the driver, and a training may fail on some "
        "nodes only. Without rocm-smi or amd-smi nothing else of the GPUs can be checked.",
        fix="install the same release of ROCm and its driver on all nodes",
        see="rocm-smi --showdriverversion; cat /sys/module/amdgpu/version",
        source="ROCm documentation, User and kernel-space support matrix",
        ask=accelerators.ask,
        flow=rocm.where_there(_driver),
        compare=alike(lambda a: rocm.told(a).driver, found="driver {value}"),
    ),
    "rocm.links": Check(
        title="AMD GPUs are linked by XGMI, alike on all nodes",
        why="A pair of GPUs that has lost its XGMI links goes over PCIe, several times slower, "
        "and all ranks wait for it.",
        fix="reboot the node; if the links are still missing, have the board's bridges checked",
        see="rocm-smi --showtopo; rocm-smi --showxgmierr",
        source="ROCm documentation, MI200 and MI300 system optimization, Hardware verification",
        ask=accelerators.ask,
        flow=rocm.where_there(_links),
        compare=alike(_kinds),
    ),
    "rocm.ras": Check(
        title="AMD GPUs have no uncorrected memory errors",
        why="The next process that touches that memory crashes, or computes with wrong values.",
        fine="no uncorrected errors",
        fix="reboot the node, which retires the page; replace the GPU if errors come back",
        see="rocm-smi --showrasinfo all; amd-smi metric --ecc",
        source="Linux, Documentation/gpu/amdgpu/ras.rst; ROCm/rocm_smi_lib#183",
        ask=accelerators.ask,
        flow=rocm.where_there(_ras),
        limits={"corrected": 10_000},
        limits_mean="corrected errors of one GPU above which it warns",
    ),
    "rocm.temperature": Check(
        title="AMD GPUs are cool enough",
        why="A GPU that is warm before the training starts slows down when it works, and holds "
        "all others up.",
        fine="cool",
        fix="look at the node's fans and air flow, and at who uses the GPU now",
        see="rocm-smi --showtemp",
        source="ROCm/rocm_smi_lib; AMD Instinct accelerators slow down at about 100 degrees C "
        "junction",
        ask=accelerators.ask,
        flow=rocm.where_there(_temperature),
        limits={"warn": 85, "fail": 100},
        limits_mean="degrees C of the hottest sensor from which it warns and fails",
    ),
    "rocm.count": Check(
        title="a node has as many AMD GPUs as slots, and the user may open them",
        tier="gate",
        why="A rank whose GPU is not there fails at once. Without access to /dev/kfd PyTorch "
        "finds no GPU and silently trains on the CPU.",
        fix="see `dmesg | grep -i amdgpu`; correct `slots:` if that is what the node has",
        see="ls -l /dev/kfd; rocm-smi",
        source="ROCm documentation, Configuring permissions for GPU access; Linux, amdkfd",
        ask=accelerators.ask,
        flow=each(_flow_rocm_count),
    ),
}
