"""Checks of a node's GPUs: driver, number, model, errors, and processes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache

from msgspec import Struct

from dslaunch.launch.devices import NAMES
from dslaunch.plural import counted, first_few
from dslaunch.preflight import kernel_log, xid
from dslaunch.preflight.alike import by_host
from dslaunch.preflight.check import (
    Check,
    Finding,
    Level,
    NodeAnswers,
    Nodes,
    UnansweredError,
    passed,
    skipped,
)
from dslaunch.preflight.checks import _accelerators as accelerators
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.comparison import deviations
from dslaunch.preflight.flow import judged


def _gpu_driver_up(a: NodeAnswers) -> Iterator[Finding]:
    if nvidia.driver(a) is nvidia.Driver.ABSENT:
        held = nvidia.held_gpus(a)
        yield from (_held(name, count) for name, count in held.items())
        if not held:
            yield skipped(nvidia.Driver.ABSENT.value)
    elif wrong := nvidia.trouble(a):
        yield wrong


def _held(driver: str, count: int) -> Finding:
    """Return that CUDA cannot use GPUs of another driver: the display's, or one for virtual
    machines."""
    found = f"{counted(count, 'NVIDIA GPU')} with the driver {driver}, which CUDA cannot use"
    fix = f"if jobs are to use them: install NVIDIA's driver in place of {driver}, and reboot"
    return Finding("warn", found, "the driver nvidia", fix, "lspci -k -d 10de:")


def _mig_devices(a: NodeAnswers) -> int | None:
    """How many devices ranks can have on a node with MIG; None: it has none."""
    from dslaunch.topology.inventory import gpu_list  # the gate, which has no use for it, is quick

    cut = [bool(gpu.on("mig.mode.current")) for gpu in nvidia.gpus(a)]
    if not any(cut):
        return None
    devices = gpu_list(a.value(nvidia.LIST)["out"])
    return cut.count(False) + sum(gpu.mig for gpu in devices.values())


def _gpu_count(a: NodeAnswers) -> Iterator[Finding]:
    slots, bus, gpus = len(a.kind.slots), nvidia.pci_gpus(a), len(nvidia.gpus(a))
    parts = _mig_devices(a)
    there, what = gpus, "GPU" if gpus == 1 else "GPUs"
    if parts is not None:
        there, what, bus = parts, "MIG devices and GPUs", 0
    if parts is not None and there < slots <= gpus:
        yield skipped("MIG devices are checked by gpu.mig")
    elif there < slots:
        on_bus = f", {bus} on the PCI bus" if bus else ""
        yield Finding(
            "fail", f"{there} {what} found for {counted(slots, 'slot')}{on_bus}", f"{slots} GPUs"
        )
    elif there < bus:
        found = f"{there} of {bus} GPUs on the PCI bus are visible to the driver"
        yield Finding("warn", found, "all GPUs visible")
    elif there > slots:
        fix = f"set `slots: {there}` in the cluster file to use all GPUs"
        yield Finding(
            "warn", f"{there} {what} found for {counted(slots, 'slot')}", f"{slots} GPUs", fix
        )
    else:
        yield passed(f"{there} {what}")


def _compare_gpu_count(nodes: Nodes) -> Iterator[Finding]:
    """A node without any GPU among nodes that have some."""
    states = by_host(nodes, nvidia.driver)
    without = tuple(host for host, state in states.items() if state is nvidia.Driver.ABSENT)
    if without and nvidia.up(nodes):
        hosts = tuple(host for host in without if nodes[host].has("pci"))
        if hosts:
            found = nvidia.Driver.ABSENT.value
            yield Finding("fail", found, "GPUs, as on the other nodes", hosts=hosts)


def _models(a: NodeAnswers) -> tuple[tuple[str, ...], dict[int, str]]:
    """Models with their memory, and the GPUs' firmware.

    Memory differs by some MiB from driver to driver: it is compared in steps.
    """
    gpus = nvidia.gpus(a)
    kinds = {(gpu.text("name") or "GPU", _memory(gpu)) for gpu in gpus}
    models = tuple(f"{name}{memory}" for name, memory in sorted(kinds))
    return models, {gpu.index: gpu.text("vbios_version") or "none" for gpu in gpus}


def _memory(gpu: nvidia.NvidiaGpu) -> str:
    total = gpu.number("memory.total")
    return f", {round(total / 4096) * 4} GiB" if total else ""


def _compare_gpu_uniform(nodes: Nodes) -> Iterator[Finding]:
    found = {}
    for host, a in nvidia.up(nodes).items():
        try:
            found[host] = _models(a)
        except UnansweredError as error:
            yield Finding("unknown", str(error), hosts=(host,))
    bad: set[str] = set()
    for host, (models, _) in found.items():
        if len(models) > 1:
            bad.add(host)
            words = f"different GPU models: {' and '.join(models)}"
            yield Finding("fail", words, "one kind", hosts=(host,))
    kinds = {host: models[0] for host, (models, _) in found.items() if host not in bad}
    for odd in deviations(kinds):
        bad |= {*odd.hosts}
        yield Finding("fail", odd.value, odd.common, hosts=odd.hosts)
    good = {host: versions for host, (_, versions) in found.items() if host not in bad}
    yield from _firmware(good)


def _firmware(found: dict[str, dict[int, str]]) -> Iterator[Finding]:
    every = Counter(version for versions in found.values() for version in versions.values())
    if not every:
        return
    common = every.most_common(1)[0][0]
    for host, versions in found.items():
        odd = {index: version for index, version in versions.items() if version != common}
        if odd:
            words = f"GPU {nvidia.listed(odd)}: VBIOS {', '.join(sorted({*odd.values()}))}"
            yield Finding("warn", words, f"{common}, as on most GPUs", _FLASH, hosts=(host,))
        else:
            yield Finding("pass", "same GPU model", hosts=(host,))


_FLASH = "update the VBIOS of these GPUs to the common version"


class GpuProcess(Struct, frozen=True):
    """A process that holds memory of a GPU."""

    gpu: str
    pid: int
    uid: int | None
    """None: it is gone, or in another container."""
    user: str


_PROCESS = re.compile(r"^(GPU-\S+), (\d{1,10}), (\d{0,10}),([^,]*), .*$")


def processes(text: str) -> list[GpuProcess]:
    """Read the lines of the question."""
    found = [match for line in text.splitlines() if (match := _PROCESS.match(line))]
    return [GpuProcess(m[1], int(m[2]), int(m[3]) if m[3] else None, m[4].strip()) for m in found]


def _gpu_leftover(a: NodeAnswers) -> Iterator[Finding]:
    answer = a.value(nvidia.APPS)
    if answer["code"]:
        raise UnansweredError(f"nvidia-smi failed with exit code {answer['code']}")
    alive = [process for process in processes(answer["out"]) if process.uid is not None]
    me = a.kind.uid
    others = Counter(p.user or str(p.uid) for p in alive if p.uid != me)
    if others:
        words = ", ".join(
            f"{counted(times, 'process', 'processes')} of {user}" for user, times in others.items()
        )
        yield Finding("fail", f"other processes on the GPUs: {words}", "no other processes")
    mine = [p.pid for p in alive if p.uid == me]
    if mine:
        # numbers that another run of the same program would not have belong to what is to be done
        pids = " ".join(map(str, mine[:8]))
        count = counted(len(mine), "own process", "own processes")
        yield Finding(
            "warn", f"{count} on the GPUs", "none", f"wait for it, or end it: `kill {pids}`"
        )
    # what nvidia-smi lists and /proc does not have may be in another container
    held = _memory_held(a, {process.gpu for process in alive})
    if held:
        words = f"GPU {nvidia.listed(held)}: memory in use, but no process is visible"
        yield Finding(
            "warn", words, "none", "run `fuser -v /dev/nvidia*` as root to find the process"
        )


def _memory_held(a: NodeAnswers, known: set[str]) -> list[int]:
    """GPUs whose memory is in use though they have no visible process."""
    used = a.part(_memory_used(a.limits["mebibytes"], a.limits["per cent"]))
    return [
        gpu.index for gpu in nvidia.gpus(a) if gpu.index in used and gpu.text("uuid") not in known
    ]


@lru_cache(maxsize=16)
def _memory_used(mebibytes: float, per_cent: float) -> Callable[[NodeAnswers], tuple[int, ...]]:
    """Return what reads which GPUs have more memory in use than either limit; with a display some
    always is."""

    def read(a: NodeAnswers) -> tuple[int, ...]:
        found = []
        for gpu in nvidia.gpus(a):
            used, total = gpu.number("memory.used") or 0, gpu.number("memory.total") or 0
            shows = gpu.on("display_active") or gpu.on("mig.mode.current")
            if used > max(mebibytes, total * per_cent / 100) and not shows:
                found.append(gpu.index)
        return tuple(found)

    return read


XIDS_TOLD = 16


def xid_errors(text: str, hours: float) -> Counter[tuple[int, str]]:
    """Return Xids with the GPU's bus address, and how often they occur."""
    found = xid.xids(text, kernel_log.since(text, hours))
    return Counter((each.number, each.bus) for each in found)


def _gpu_xid(a: NodeAnswers) -> Iterator[Finding]:
    found = xid_errors(kernel_log.log(a), a.limits["hours"])
    levels: dict[Level, list[str]] = {}
    for (number, bus), times in found.items():
        words = f"{xid.xid_text(number)} on {bus}"
        level: Level = "fail" if xid.Xid(number, bus, None).is_of_hardware else "info"
        levels.setdefault(level, []).append(words + (f" {times} times" if times > 1 else ""))
    for level, words_of in levels.items():
        expected = "no hardware errors" if level == "fail" else ""
        yield Finding(level, "; ".join(first_few(words_of, XIDS_TOLD)), expected)
    if "fail" not in levels:
        yield passed("no hardware errors in the kernel log")


CHECKED = {
    "amd": (
        "checked: number, access, driver, memory errors, temperature and XGMI links; "
        "not checked: power limits, clocks, PCIe links and other processes"
    ),
    "intel": (
        "checked: device files; not checked: driver version, memory errors, temperature and Xe Link"
    ),
    "ascend": (
        "checked: number; not checked: driver version, health, memory errors, "
        "temperature and HCCS links"
    ),
}
_NUMBER_ALONE = "checked: number of device files"


def _gpu_vendors(a: NodeAnswers) -> Iterator[Finding]:
    others = [vendor for vendor in a["accelerators"] if vendor != "nvidia"]
    for vendor in others:
        if vendor != "amd":  # rocm.count tells of these
            yield from (v for v in accelerators.count(a, vendor) if v.level != "pass")
        devices = a["accelerators"][vendor]["devices"]
        if devices:
            what = CHECKED.get(vendor, _NUMBER_ALONE)
            yield Finding("info", f"{counted(devices, NAMES[vendor])}: {what}")
    if not others:
        yield skipped("no accelerators other than NVIDIA GPUs")


CHECKS = {
    "gpu.driver-up": Check(
        title="the NVIDIA driver is running",
        tier="gate",
        why=(
            "Without the driver no rank can use a GPU. An updated driver under a running "
            "kernel, a GPU that fell off the bus or a hung nvidia-smi stops all ranks of "
            "the node, and the whole training with them."
        ),
        flow=nvidia.queried(judge=_gpu_driver_up, fine="nvidia-smi answers"),
        fix="look for driver errors in `dmesg | grep -i nvrm`, then reboot the node",
        see="nvidia-smi",
        source="nvidia-smi(1), return value; AzureHPC health checks (20 s)",
    ),
    "gpu.count": Check(
        title="nodes have as many GPUs as slots",
        tier="gate",
        why=(
            "A rank without a GPU fails at start, or shares the GPU of another rank and "
            "both run out of memory. GPUs are the most frequent cause of failures: 59 % "
            "of the unexpected interruptions of Llama 3 405B."
        ),
        fix=(
            "look for errors in `dmesg | grep -i -e nvrm -e xid`; reseat or power-cycle; "
            "correct `slots:` if the node has fewer GPUs"
        ),
        see="nvidia-smi -L; lspci -d 10de:",
        source="The Llama 3 Herd of Models, 2024, table 5; leptonai/gpud, facebookresearch/gcm",
        flow=nvidia.where_up(_gpu_count, {"list": nvidia.LIST}, compare=_compare_gpu_count),
    ),
    "gpu.uniform": Check(
        title="all GPUs are the same model",
        why=(
            "The slowest GPU limits the speed of all, and the smallest memory limits the "
            "model size: a node with other GPUs runs out of memory or is a straggler."
        ),
        fix="select nodes with one GPU model: `--label`, `--exclude`",
        see="nvidia-smi --query-gpu=name,memory.total,vbios_version --format=csv",
        source="imbue-ai/cluster-health; GoogleCloudPlatform/cluster-health-scanner",
        flow=nvidia.queried(compare=_compare_gpu_uniform),
    ),
    "gpu.leftover": Check(
        title="no other processes on the GPUs",
        why=(
            "Processes left by an earlier job, or those of another user, take GPU memory "
            "and time: the training runs out of memory at its first step, or one node "
            "slows down all."
        ),
        flow=nvidia.where_up(
            _gpu_leftover, {"apps": nvidia.APPS}, fine="no other processes on the GPUs"
        ),
        fix=(
            "ask the owner of the processes, or choose other nodes; end a process by its PID only"
        ),
        see="nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv",
        source="facebookresearch/gcm; imbue-ai/cluster-health",
        limits={"mebibytes": 64, "per cent": 1},
        limits_mean=(
            "memory in use without a visible process above which it warns: MiB, and per "
            "cent of the GPU's memory; the larger one applies"
        ),
    ),
    "gpu.xid": Check(
        title="no GPU hardware errors in the kernel log",
        why=(
            "The driver logs an Xid error when a GPU, its memory or its links fail, "
            "often hours before a job fails. Xids caused by programs (13, 31, 43, 45) "
            "are reported as information."
        ),
        fix=(
            "look up the number in NVIDIA's Xid catalog; most require a GPU reset or a "
            "reboot, 79 a power cycle"
        ),
        see="sudo dmesg -T | grep -i xid",
        source="NVIDIA Xid catalog; imbue-ai/cluster-health, AzureHPC health checks (2 hours)",
        flow=nvidia.where_up(_gpu_xid, {"kernel": kernel_log.LOG}),
        limits={"hours": 2},
        limits_mean="hours back in the log to look for errors",
    ),
    "gpu.vendors": Check(
        title="accelerators other than NVIDIA GPUs",
        tier="gate",
        why=(
            "Most GPU checks use NVIDIA's tools. A node with other accelerators passes "
            "checks that do not apply to it."
        ),
        fix=(
            "run the vendor's diagnostics for the rest: `rocm-smi`, `xpu-smi diag`, `npu-smi info`"
        ),
        see="ls -l /dev/kfd /dev/dri /dev/davinci* /dev/accel",
        source="Linux, drivers/gpu/drm/amd/amdkfd; ascend-docker-runtime; habanalabs; AWS Neuron",
        flow=judged(_gpu_vendors, accelerators.ask),
    ),
}
