"""Checks that read fields of one GPU at a time, as `nvidia-smi --query-gpu` prints them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from operator import ge, gt, lt

from dslaunch.plural import counted
from dslaunch.preflight.check import Check
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.checks._nvidia import GpuRule, Predicate, each_gpu
from dslaunch.preflight.checks._query import NvidiaGpu

Limits = Mapping[str, float]
fail, warn, info = (partial(GpuRule, level) for level in ("fail", "warn", "info"))

# ---------------------------------------------------------------- predicates


def on(field: str) -> Predicate:
    """The field is `Enabled` or `Yes`."""
    return lambda gpu, limits: gpu.on(field)


def off(field: str) -> Predicate:
    """The field is `Disabled` or `No`."""
    return lambda gpu, limits: gpu.on(field) is False


def word(field: str, words: tuple[str, ...], known: tuple[str, ...]) -> Predicate:
    """The field is one of some of the words that it can be; shows it."""
    return lambda gpu, limits: found if (found := gpu.word(field, *known)) in words else None


def other_than(field: str, usual: str) -> Predicate:
    """The field has another value; shows it."""
    return lambda gpu, limits: found if (found := gpu.text(field)) != usual else None


def number(field: str, compares: Callable[[float, float], bool], limit: str) -> Predicate:
    """A number stands so to a threshold; shows it."""

    def applies(gpu: NvidiaGpu, limits: Limits) -> float | None:
        found = gpu.number(field)
        return found if found is not None and compares(found, limits[limit]) else None

    return applies


def some(field: str, noun: str) -> Predicate:
    """A count is not zero; shows it with its noun."""
    return lambda gpu, limits: counted(round(n), noun) if (n := gpu.number(field)) else None


def less_than(field: str, most: str) -> Predicate:
    """A number is less than that of another field; shows both."""

    def applies(gpu: NvidiaGpu, limits: Limits) -> tuple[float, float] | None:
        now, possible = gpu.number(field), gpu.number(most)
        if now is None or possible is None or now >= possible:
            return None
        return now, possible

    return applies


def changes(mode: str) -> Predicate:
    """A mode will be another one after a reset; shows both."""

    def applies(gpu: NvidiaGpu, limits: Limits) -> tuple[str | None, ...] | None:
        both = tuple(gpu.word(f"{mode}.{at}", *MODES) for at in ("current", "pending"))
        return both if both[0] != both[1] else None

    return applies


def slowed_down(bits: Mapping[int, str]) -> Predicate:
    """One of some reasons is active; shows all that are."""

    def applies(gpu: NvidiaGpu, limits: Limits) -> str | None:
        active = gpu.hexadecimal("clocks_event_reasons.active")
        if active is None:
            active = gpu.hexadecimal("clocks_throttle_reasons.active") or 0
        if not any(active & bit for bit in bits):
            return None
        return " and ".join(reason for bit, reason in SLOWDOWNS.items() if active & bit)

    return applies


def _ecc_off(gpu: NvidiaGpu, limits: Limits) -> bool:
    return gpu.word("ecc.mode.current", *MODES) == "Disabled" and nvidia.data_centre(gpu.name)


def _slower_pcie(gpu: NvidiaGpu, limits: Limits) -> object:
    """A GPU that sleeps lowers its link's speed; those in P0 do not."""
    found = less_than("pcie.link.gen.current", "pcie.link.gen.max")(gpu, limits)
    return found if found and gpu.word("pstate", *POWER_STATES) == "P0" else None


def _limited_power(gpu: NvidiaGpu, limits: Limits) -> tuple[float, float] | None:
    now, usual = gpu.number("enforced.power.limit"), gpu.number("power.default_limit")
    if now is None or usual is None or now >= usual * (1 - limits["warn"] / 100):
        return None
    return now, usual


def _retired(gpu: NvidiaGpu, limits: Limits) -> float | None:
    single = gpu.number("retired_pages.single_bit_ecc.count") or 0
    double = gpu.number("retired_pages.double_bit.count") or 0
    return single + double if single + double >= limits["fail"] else None


def _hot(gpu: NvidiaGpu, limits: Limits) -> object:
    """Of GPUs that do not tell how far they are from their limit."""
    told = gpu.number("temperature.gpu.tlimit") is not None
    return None if told else number("temperature.gpu", ge, "celsius")(gpu, limits)


MODES = ("Enabled", "Disabled")
EXCLUSIVE = ("Exclusive_Process", "Exclusive_Thread")
COMPUTE = ("Default", "Prohibited", *EXCLUSIVE)
POWER_STATES = tuple(f"P{at}" for at in range(16))
SEVERE = {0x40: "heat (hardware)", 0x80: "the power brake"}
SLOWDOWNS = {**SEVERE, 0x08: "hardware", 0x20: "heat (software)"}
"""Idle, set clocks, the power cap, sync boost and display clocks are no trouble."""

# ---------------------------------------------------------------- the table

CORRECTED = "ecc.errors.corrected.volatile"
SRAM = "ecc.errors.uncorrected.aggregate.sram"
_ROWS = {
    "gpu.compute-mode": Check(
        title="processes may use the GPUs",
        why="A prohibited GPU cannot be used at all; an exclusive one only by one process: "
        "data loaders that touch the GPU fail.",
        flow=each_gpu(
            ("compute_mode",),
            fail(
                "compute mode {}: nobody may use it", word("compute_mode", ("Prohibited",), COMPUTE)
            ),
            info(
                "compute mode {}: one process at a time", word("compute_mode", EXCLUSIVE, COMPUTE)
            ),
            expected="Default",
        ),
        fine="compute mode Default",
        fix="`nvidia-smi -c 0`",
        see="nvidia-smi --query-gpu=index,compute_mode --format=csv",
        source="nvidia-smi(1), Compute Mode; facebookresearch/gcm",
    ),
    "gpu.ecc-corrected": Check(
        title="GPU memory has few corrected errors",
        why="Corrected errors do no harm by themselves. Very many of them precede those that "
        "cannot be corrected.",
        flow=each_gpu(
            (f"{CORRECTED}.sram", f"{CORRECTED}.dram"),
            warn(
                "{:.0f} corrected SRAM errors since its start",
                number(f"{CORRECTED}.sram", gt, "sram"),
            ),
            warn(
                "{:.0f} corrected DRAM errors since its start",
                number(f"{CORRECTED}.dram", gt, "dram"),
            ),
            expected="few",
        ),
        fine="few corrected errors",
        limits={"sram": 10_000, "dram": 20_000_000},
        limits_mean="corrected errors since the driver was loaded, above which it warns",
        fix="watch the GPU; swap it when it is convenient",
        see="nvidia-smi -q -d ECC",
        source="AzureHPC health checks (10,000 and 20,000,000); facebookresearch/gcm",
    ),
    "gpu.ecc-mode": Check(
        title="GPU memory is protected by ECC",
        why="Without ECC a flipped bit becomes a wrong gradient that nobody notices.",
        flow=each_gpu(
            ("ecc.mode.current",),
            fail("ECC is {}, and will be {} after a reset", changes("ecc.mode")),
            warn("ECC is disabled", _ecc_off),
            expected="enabled",
        ),
        fine="ECC as it should be",
        fix="`nvidia-smi -e 1`, then reset the GPU or reboot the node",
        see="nvidia-smi --query-gpu=index,ecc.mode.current,ecc.mode.pending --format=csv",
        source="imbue-ai/cluster-health",
    ),
    "gpu.ecc-sram": Check(
        title="GPU on-chip memory is sound",
        why="On-chip memory has no spare rows: a GPU with such errors gets more of them, and "
        "NVIDIA replaces it beyond a threshold.",
        flow=each_gpu(
            (SRAM, f"{SRAM}.thresholdExceeded"),
            fail(
                "uncorrected SRAM errors beyond the maker's threshold",
                on(f"{SRAM}.thresholdExceeded"),
            ),
            warn("{} in its life", some(SRAM, "uncorrected SRAM error")),
            expected="0",
        ),
        fine="no SRAM errors",
        fix="have the GPU replaced if the threshold is exceeded; else watch whether the "
        "number grows",
        see="nvidia-smi -q -d ECC",
        source="NVIDIA GPU memory error management; AzureHPC health checks",
    ),
    "gpu.ecc-uncorrected": Check(
        title="GPU memory has no uncorrected errors",
        tier="gate",
        why="The next process that touches that memory crashes, or computes with wrong "
        "values. Memory of GPUs was the second most frequent cause of interruption of "
        "Llama 3 405B (17 %).",
        flow=each_gpu(
            ("ecc.errors.uncorrected.volatile.total",),
            fail(
                "{} since its start",
                some("ecc.errors.uncorrected.volatile.total", "uncorrected memory error"),
            ),
            expected="0",
        ),
        fine="no uncorrected errors",
        fix="reset the GPU (`nvidia-smi -r -i GPU`) or reboot, which remaps the row; replace "
        "the GPU if errors come back",
        see="nvidia-smi -q -d ECC",
        source="The Llama 3 Herd of Models, 2024, table 5; facebookresearch/gcm",
    ),
    "gpu.mig": Check(
        title="GPUs are whole",
        why="NCCL does not work between the parts of one GPU, and has no NVLink to others.",
        flow=each_gpu(
            ("mig.mode.current",),
            fail("MIG is enabled", on("mig.mode.current")),
            warn("MIG is {}, and will be {} after a reset", changes("mig.mode")),
            expected="disabled",
        ),
        fine="MIG is off",
        fix="`nvidia-smi -mig 0`, or set `preflight.severity` for gpu.mig to info if that is meant",
        see="nvidia-smi --query-gpu=index,mig.mode.current --format=csv",
        source="NVIDIA MIG user guide, limitations",
    ),
    "gpu.pcie": Check(
        title="GPUs have their full PCIe link",
        why="Offloading and GPUDirect RDMA run at half speed over half the lanes. One such "
        "GPU holds up all others.",
        flow=each_gpu(
            ("pcie.link.width.current",),
            fail(
                "{:.0f} of {:.0f} PCIe lanes",
                less_than("pcie.link.width.current", "pcie.link.width.max"),
            ),
            warn("PCIe generation {:.0f} of {:.0f}", _slower_pcie),
            expected="all lanes at full speed",
        ),
        fine="full PCIe link",
        fix="reseat the card or riser; see the BIOS for the slot's bifurcation and link speed",
        see="nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.gen.max,"
        "pcie.link.width.current,pcie.link.width.max --format=csv",
        source="AzureHPC health checks; leptonai/gpud",
    ),
    "gpu.persistence": Check(
        title="the driver stays initialised",
        why="Else every process that comes first waits seconds for each GPU, settings such "
        "as power limits are lost, and nvidia-smi itself is slow.",
        flow=each_gpu(
            ("persistence_mode",),
            warn("persistence mode is off", off("persistence_mode")),
            expected="on",
        ),
        fine="persistence mode is on",
        fix="start nvidia-persistenced (`systemctl enable --now nvidia-persistenced`), or "
        "`nvidia-smi -pm 1`",
        see="nvidia-smi --query-gpu=index,persistence_mode --format=csv",
        source="NVIDIA driver persistence documentation; AzureHPC health checks",
    ),
    "gpu.power-limit": Check(
        title="GPUs may draw their full power",
        why="A GPU with a lower limit is slower than the others, which wait for it.",
        flow=each_gpu(
            ("enforced.power.limit",),
            warn("limited to {:.0f} W of {:.0f} W", _limited_power),
            expected="the default limit",
        ),
        fine="full power",
        limits={"warn": 2},
        limits_mean="per cent below the default limit from which it warns",
        fix="`nvidia-smi -pl WATTS`; see whether the chassis limits it (`nvidia-smi -q -d POWER`)",
        see="nvidia-smi --query-gpu=index,enforced.power.limit,power.default_limit --format=csv",
        source="nvidia-smi(1), Enforced Power Limit",
    ),
    "gpu.recovery": Check(
        title="the driver wants no GPU reset",
        tier="gate",
        why="The driver's own verdict: after an error that it cannot mend it asks for a "
        "reset of the GPU, a reboot or a drain. Until then work on that GPU fails or "
        "hangs.",
        flow=each_gpu(
            ("gpu_recovery_action",),
            fail("the driver wants: {}", other_than("gpu_recovery_action", "None")),
            expected="None",
        ),
        fine="no action wanted",
        fix="do what it says: `nvidia-smi -r -i GPU`, or reboot the node",
        see="nvidia-smi --query-gpu=index,gpu_recovery_action --format=csv",
        source="nvidia-smi(1), GPU Recovery Action (driver 570 and later)",
    ),
    "gpu.retired-pages": Check(
        title="few pages of GPU memory are retired",
        why="A GPU can retire 64 pages; then it must be replaced, and a page that waits for "
        "its retirement is still in use.",
        flow=each_gpu(
            ("retired_pages.pending", "retired_pages.double_bit.count"),
            fail("a page of memory waits for a reset to be retired", on("retired_pages.pending")),
            fail("{:.0f} retired pages", _retired),
            warn(
                "{:.0f} pages retired for errors that could not be corrected",
                number("retired_pages.double_bit.count", gt, "warn"),
            ),
            expected="none pending",
        ),
        fine="few retired pages",
        limits={"fail": 63, "warn": 15},
        limits_mean="retired pages from which it fails; pages with double-bit errors above "
        "which it warns",
        fix="reset the GPU or reboot; have it replaced at the limit",
        see="nvidia-smi -q -d PAGE_RETIREMENT",
        source="NVIDIA DCGM (63 pages, 15 of them double-bit); AzureHPC health checks",
    ),
    "gpu.row-remap": Check(
        title="GPU memory needs no repair",
        tier="gate",
        why="A row that failed is in use until the GPU is reset; one that could not be "
        "replaced fails again. Both end a training at some later step.",
        flow=each_gpu(
            ("remapped_rows.failure", "remapped_rows.pending"),
            fail("a row of memory could not be replaced", on("remapped_rows.failure")),
            fail("a row of memory waits for a reset to be replaced", on("remapped_rows.pending")),
            fail(
                "{:.0f} rows of memory replaced", number("remapped_rows.uncorrectable", ge, "fail")
            ),
            expected="none pending, none failed",
        ),
        fine="no row waits",
        limits={"fail": 512},
        limits_mean="replaced rows from which it fails",
        fix="reset the GPU (`nvidia-smi -r -i GPU`) or reboot; have it replaced after a "
        "failed remapping",
        see="nvidia-smi -q -d ROW_REMAPPER",
        source="NVIDIA DCGM (DCGM_LIMIT_MAX_ROW_REMAP_UNCORRECTABLE 512); facebookresearch/gcm",
    ),
    "gpu.temperature": Check(
        title="GPUs are cool enough",
        why="A GPU that is warm before the training starts slows down when it works, and "
        "holds all others up.",
        flow=each_gpu(
            ("temperature.gpu.tlimit", "temperature.gpu"),
            fail("{:.0f} degrees C below its limit", number("temperature.gpu.tlimit", lt, "fail")),
            warn("{:.0f} degrees C below its limit", number("temperature.gpu.tlimit", lt, "warn")),
            warn("{:.0f} degrees C", _hot),
            expected="at least 10 degrees C below the limit",
        ),
        fine="cool",
        limits={"warn": 10, "fail": 3, "celsius": 84},
        limits_mean="degrees C to the limit below which it warns and fails; `celsius`: for "
        "GPUs that do not tell their limit",
        fix="look at the node's fans and air flow, and at who uses the GPU now",
        see="nvidia-smi -q -d TEMPERATURE",
        source="nvidia-smi(1), GPU T.Limit; facebookresearch/gcm (84)",
    ),
    "gpu.throttle": Check(
        title="no GPU is slowed down",
        why="One slow GPU holds up all others at every step.",
        flow=each_gpu(
            ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
            fail("slowed down by {}", slowed_down(SEVERE)),
            warn("slowed down by {}", slowed_down(SLOWDOWNS)),
            expected="no slowdown",
        ),
        fine="full speed",
        fix="look at the node's fans, air flow and power supplies; lower the load of the rack",
        see="nvidia-smi -q -d PERFORMANCE",
        source="NVML, nvmlClocksEventReasons; AzureHPC health checks",
    ),
}
CHECKS = {name: replace(row, ask=nvidia.ask) for name, row in _ROWS.items()}
