"""Checks that read fields of one GPU at a time, as `nvidia-smi --query-gpu` prints them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

    def applies(gpu: NvidiaGpu, limits: Limits) -> str | None:
        found = gpu.word(field, *known)
        return found if found in words else None

    return applies


def other_than(field: str, usual: str) -> Predicate:
    """The field has another value; shows it."""

    def applies(gpu: NvidiaGpu, limits: Limits) -> str | None:
        found = gpu.text(field)
        return found if found != usual else None

    return applies


def number(field: str, compares: Callable[[float, float], bool], limit: str) -> Predicate:
    """A number stands so to a threshold; shows it."""

    def applies(gpu: NvidiaGpu, limits: Limits) -> float | None:
        found = gpu.number(field)
        return found if found is not None and compares(found, limits[limit]) else None

    return applies


def some(field: str, noun: str) -> Predicate:
    """A count is not zero; shows it with its noun."""

    def applies(gpu: NvidiaGpu, limits: Limits) -> str | None:
        count = gpu.number(field)
        return counted(round(count), noun) if count else None

    return applies


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
    """For GPUs that do not report their temperature limit."""
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
CHECKS = {
    "gpu.compute-mode": Check(
        title="compute mode allows all processes",
        why=(
            "A prohibited GPU cannot be used; an exclusive one only by one process: data "
            "loaders that use the GPU fail."
        ),
        flow=each_gpu(
            ("compute_mode",),
            fail(
                "compute mode {}: no process may use the GPU",
                word("compute_mode", ("Prohibited",), COMPUTE),
            ),
            info(
                "compute mode {}: one process at a time", word("compute_mode", EXCLUSIVE, COMPUTE)
            ),
            expected="Default",
            fine="compute mode Default",
        ),
        fix="`nvidia-smi -c 0`",
        see="nvidia-smi --query-gpu=index,compute_mode --format=csv",
        source="nvidia-smi(1), Compute Mode; facebookresearch/gcm",
    ),
    "gpu.ecc-corrected": Check(
        title="few corrected GPU memory errors",
        why="Corrected errors do no harm. Very many of them precede uncorrected errors.",
        flow=each_gpu(
            (f"{CORRECTED}.sram", f"{CORRECTED}.dram"),
            warn(
                "{:.0f} corrected SRAM errors since the driver was loaded",
                number(f"{CORRECTED}.sram", gt, "sram"),
            ),
            warn(
                "{:.0f} corrected DRAM errors since the driver was loaded",
                number(f"{CORRECTED}.dram", gt, "dram"),
            ),
            expected="few",
            fine="few corrected errors",
        ),
        limits={"sram": 10_000, "dram": 20_000_000},
        limits_mean="corrected errors since the driver was loaded, above which it warns",
        fix="monitor the GPU; replace it at the next maintenance",
        see="nvidia-smi -q -d ECC",
        source="AzureHPC health checks (10,000 and 20,000,000); facebookresearch/gcm",
    ),
    "gpu.ecc-mode": Check(
        title="ECC is enabled",
        why="Without ECC a flipped bit becomes a wrong gradient without an error.",
        flow=each_gpu(
            ("ecc.mode.current",),
            fail("ECC is {}, pending {} after a reset", changes("ecc.mode")),
            warn("ECC is disabled", _ecc_off),
            expected="enabled",
            fine="ECC enabled where the GPU supports it",
        ),
        fix="run `nvidia-smi -e 1`, then reset the GPU or reboot the node",
        see="nvidia-smi --query-gpu=index,ecc.mode.current,ecc.mode.pending --format=csv",
        source="imbue-ai/cluster-health",
    ),
    "gpu.ecc-sram": Check(
        title="no uncorrected GPU SRAM errors",
        why=(
            "SRAM has no spare rows: a GPU with SRAM errors gets more of them, and "
            "NVIDIA replaces it above a threshold."
        ),
        flow=each_gpu(
            (SRAM, f"{SRAM}.thresholdExceeded"),
            fail(
                "uncorrected SRAM errors above the vendor's threshold",
                on(f"{SRAM}.thresholdExceeded"),
            ),
            warn("{} in its lifetime", some(SRAM, "uncorrected SRAM error")),
            expected="0",
            fine="no SRAM errors",
        ),
        fix="have the GPU replaced if the threshold is exceeded; else monitor the counter",
        see="nvidia-smi -q -d ECC",
        source="NVIDIA GPU memory error management; AzureHPC health checks",
    ),
    "gpu.ecc-uncorrected": Check(
        title="no uncorrected GPU memory errors",
        tier="gate",
        why=(
            "The next process that uses that memory crashes or computes wrong values. "
            "GPU memory was the second most frequent cause of interruption of Llama 3 "
            "405B (17 %)."
        ),
        flow=each_gpu(
            ("ecc.errors.uncorrected.volatile.total",),
            fail(
                "{} since the driver was loaded",
                some("ecc.errors.uncorrected.volatile.total", "uncorrected memory error"),
            ),
            expected="0",
            fine="no uncorrected errors",
        ),
        fix=(
            "reset the GPU (`nvidia-smi -r -i GPU`) or reboot, which remaps the row; "
            "replace the GPU if errors recur"
        ),
        see="nvidia-smi -q -d ECC",
        source="The Llama 3 Herd of Models, 2024, table 5; facebookresearch/gcm",
    ),
    "gpu.mig": Check(
        title="MIG is disabled",
        why=("NCCL does not work between MIG devices of one GPU, and MIG devices have no NVLink."),
        flow=each_gpu(
            ("mig.mode.current",),
            fail("MIG is enabled", on("mig.mode.current")),
            warn("MIG is {}, pending {} after a reset", changes("mig.mode")),
            expected="disabled",
            fine="MIG disabled",
        ),
        fix=("run `nvidia-smi -mig 0`; or set `preflight.severity` of gpu.mig to info to use MIG"),
        see="nvidia-smi --query-gpu=index,mig.mode.current --format=csv",
        source="NVIDIA MIG user guide, limitations",
    ),
    "gpu.pcie": Check(
        title="GPUs have their full PCIe link",
        why=(
            "Offloading and GPUDirect RDMA run at half speed over half the lanes. One "
            "such GPU slows down all others."
        ),
        flow=each_gpu(
            ("pcie.link.width.current",),
            fail(
                "{:.0f} of {:.0f} PCIe lanes",
                less_than("pcie.link.width.current", "pcie.link.width.max"),
            ),
            warn("PCIe generation {:.0f} of {:.0f}", _slower_pcie),
            expected="all lanes at full speed",
            fine="full PCIe link",
        ),
        fix=("reseat the card or riser; check the slot's bifurcation and link speed in the BIOS"),
        see="nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.gen.max,"
        "pcie.link.width.current,pcie.link.width.max --format=csv",
        source="AzureHPC health checks; leptonai/gpud",
    ),
    "gpu.persistence": Check(
        title="persistence mode is enabled",
        why=(
            "Without it the first process waits seconds for each GPU, settings such as "
            "power limits are lost, and nvidia-smi is slow."
        ),
        flow=each_gpu(
            ("persistence_mode",),
            warn("persistence mode disabled", off("persistence_mode")),
            expected="on",
            fine="persistence mode enabled",
        ),
        fix="run `systemctl enable --now nvidia-persistenced`, or `nvidia-smi -pm 1`",
        see="nvidia-smi --query-gpu=index,persistence_mode --format=csv",
        source="NVIDIA driver persistence documentation; AzureHPC health checks",
    ),
    "gpu.power-limit": Check(
        title="GPUs have their default power limit",
        why="A GPU with a lower power limit is a straggler.",
        flow=each_gpu(
            ("enforced.power.limit",),
            warn("power limit {:.0f} W of {:.0f} W", _limited_power),
            expected="the default limit",
            fine="full power",
        ),
        limits={"warn": 2},
        limits_mean="per cent below the default limit at which it warns",
        fix=(
            "run `nvidia-smi -pl WATTS`; check whether the chassis limits it "
            "(`nvidia-smi -q -d POWER`)"
        ),
        see="nvidia-smi --query-gpu=index,enforced.power.limit,power.default_limit --format=csv",
        source="nvidia-smi(1), Enforced Power Limit",
    ),
    "gpu.recovery": Check(
        title="the driver requests no GPU recovery",
        tier="gate",
        why=(
            "After an error that the driver cannot recover it requests a GPU reset, a "
            "reboot or a drain. Until then work on that GPU fails or hangs."
        ),
        flow=each_gpu(
            ("gpu_recovery_action",),
            fail("the driver requests: {}", other_than("gpu_recovery_action", "None")),
            expected="None",
            fine="no recovery action requested",
        ),
        fix="do what the driver requests: `nvidia-smi -r -i GPU`, or reboot the node",
        see="nvidia-smi --query-gpu=index,gpu_recovery_action --format=csv",
        source="nvidia-smi(1), GPU Recovery Action (driver 570 and later)",
    ),
    "gpu.retired-pages": Check(
        title="few retired GPU memory pages",
        why=(
            "A GPU can retire 64 pages; then it must be replaced. A page pending "
            "retirement is still in use."
        ),
        flow=each_gpu(
            ("retired_pages.pending", "retired_pages.double_bit.count"),
            fail("page retirement pending", on("retired_pages.pending")),
            fail("{:.0f} retired pages", _retired),
            warn(
                "{:.0f} pages retired after uncorrected errors",
                number("retired_pages.double_bit.count", gt, "warn"),
            ),
            expected="none pending",
            fine="few retired pages",
        ),
        limits={"fail": 63, "warn": 15},
        limits_mean=(
            "retired pages at which it fails; pages with double-bit errors above which it warns"
        ),
        fix="reset the GPU or reboot; have the GPU replaced at the limit",
        see="nvidia-smi -q -d PAGE_RETIREMENT",
        source="NVIDIA DCGM (63 pages, 15 of them double-bit); AzureHPC health checks",
    ),
    "gpu.row-remap": Check(
        title="no GPU row remapping pending or failed",
        tier="gate",
        why=(
            "A failed row is in use until the GPU is reset; one that could not be "
            "remapped fails again. Both end a training at some later step."
        ),
        flow=each_gpu(
            ("remapped_rows.failure", "remapped_rows.pending"),
            fail("row remapping failed", on("remapped_rows.failure")),
            fail("row remapping pending", on("remapped_rows.pending")),
            fail("{:.0f} rows remapped", number("remapped_rows.uncorrectable", ge, "fail")),
            expected="none pending, none failed",
            fine="no row remapping pending or failed",
        ),
        limits={"fail": 512},
        limits_mean="remapped rows at which it fails",
        fix=(
            "reset the GPU (`nvidia-smi -r -i GPU`) or reboot; have the GPU replaced "
            "after a failed remapping"
        ),
        see="nvidia-smi -q -d ROW_REMAPPER",
        source="NVIDIA DCGM (DCGM_LIMIT_MAX_ROW_REMAP_UNCORRECTABLE 512); facebookresearch/gcm",
    ),
    "gpu.temperature": Check(
        title="GPU temperatures are normal",
        why=(
            "A GPU that is hot before the training starts is throttled under load and "
            "slows down all others."
        ),
        flow=each_gpu(
            ("temperature.gpu.tlimit", "temperature.gpu"),
            fail("{:.0f} degrees C below its limit", number("temperature.gpu.tlimit", lt, "fail")),
            warn("{:.0f} degrees C below its limit", number("temperature.gpu.tlimit", lt, "warn")),
            warn("{:.0f} degrees C", _hot),
            expected="at least 10 degrees C below the limit",
            fine="cool",
        ),
        limits={"warn": 10, "fail": 3, "celsius": 84},
        limits_mean=(
            "degrees C below the limit at which it warns and fails; `celsius`: "
            "temperature for GPUs that report no limit"
        ),
        fix="check the node's fans and air flow, and which processes use the GPU",
        see="nvidia-smi -q -d TEMPERATURE",
        source="nvidia-smi(1), GPU T.Limit; facebookresearch/gcm (84)",
    ),
    "gpu.throttle": Check(
        title="no GPU is throttled",
        why="One slow GPU slows down all others at every step.",
        flow=each_gpu(
            ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
            fail("throttled by {}", slowed_down(SEVERE)),
            warn("throttled by {}", slowed_down(SLOWDOWNS)),
            expected="no slowdown",
            fine="full speed",
        ),
        fix=("check the node's fans, air flow and power supplies; reduce the load of the rack"),
        see="nvidia-smi -q -d PERFORMANCE",
        source="NVML, nvmlClocksEventReasons; AzureHPC health checks",
    ),
}
