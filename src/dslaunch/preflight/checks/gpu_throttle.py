"""Whether a GPU is slowed down just now, and by what."""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.preflight.check import Check, Level
from dslaunch.preflight.checks import _nvidia as nvidia

_BITS: tuple[tuple[int, Level, str], ...] = (
    (0x40, "fail", "heat (hardware)"),
    (0x80, "fail", "the power brake"),
    (0x08, "warn", "hardware"),
    (0x20, "warn", "heat (software)"),
)
"""Idle, set clocks, the power cap, sync boost and display clocks are no trouble."""


def _gpu(gpu: nvidia.Gpu, limits: Mapping[str, float]) -> nvidia.Said | None:
    del limits
    active = gpu.hexadecimal("clocks_event_reasons.active")
    if active is None:
        active = gpu.hexadecimal("clocks_throttle_reasons.active")
    words = [(level, word) for bit, level, word in _BITS if (active or 0) & bit]
    if not words:
        return None
    level: Level = "fail" if any(level == "fail" for level, _ in words) else "warn"
    return level, "slowed down by " + " and ".join(word for _, word in words)


CHECK = Check(
    title="no GPU is slowed down",
    tier="static",
    why="One slow GPU holds up all others at every step.",
    fix="look at the node's fans, air flow and power supplies; lower the load of the rack",
    see="nvidia-smi -q -d PERFORMANCE",
    source="NVML, nvmlClocksEventReasons; AzureHPC health checks",
    ask=nvidia.ask,
    then=nvidia.then(),
    judge=nvidia.each_gpu(
        _gpu,
        "full speed",
        expected="no slowdown",
        needs=("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
    ),
)
