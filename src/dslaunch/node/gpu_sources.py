"""GPUs where NVML cannot be loaded: nvidia-smi, and for AMD the files of its driver.

nvidia-smi  `nvidia-smi --help-query-gpu`; memory in MiB, power in W.
amdgpu      Linux, Documentation/gpu/amdgpu/thermal.rst: what rocm-smi and amd-smi read too, without
            the second of CPU time that each of them takes.
"""

from __future__ import annotations

import glob
import os
import subprocess

from dslaunch.node import nvml, paths
from dslaunch.node.paths import number_of

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional

    Gpus = List[Dict[str, Any]]

_FIELDS = "index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu,clocks.sm,"
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The names of one field in newer and older drivers."""
TIMEOUT = 20
AMD, MIB = "0x1002", 1 << 20


def from_nvidia_smi(program: str) -> Gpus:
    """Return all NVIDIA GPUs. Raises OSError, ValueError, subprocess.TimeoutExpired."""
    for reasons in REASONS:
        done = subprocess.run(
            [program, f"--query-gpu={_FIELDS}{reasons}", "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT,
            check=False,
        )
        text = done.stdout[: paths.MOST_TEXT].decode(errors="replace")
        if done.returncode == 0:
            return parse_csv(text)
    raise ValueError(text.strip()[:200])


def parse_csv(text: str) -> Gpus:
    """Return the GPUs of the output; lines of another form are left out."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 8 and cells[0].isdigit():
            found.append(_row(cells))
    return found[: nvml.MOST_GPUS]


def _row(cells: List[str]) -> Dict[str, Any]:
    busy, used, total, power, temperature, clock = map(_number, cells[1:7])
    try:
        reasons = int(cells[7], 16)
    except ValueError:  # [N/A]
        reasons = 0
    return {
        "index": int(cells[0]),
        "busy": None if busy is None else busy / 100,
        "memory_used": None if used is None else int(used) * MIB,
        "memory_total": None if total is None else int(total) * MIB,
        "power": power,
        "temperature": temperature,
        "clock": None if clock is None else int(clock),
        "throttled": nvml.throttled(reasons),
    }


def _number(cell: str) -> Optional[float]:
    """Return a number; None for `[N/A]`, `[Not Supported]` and the like."""
    try:
        return float(cell)
    except ValueError:
        return None


def from_amdgpu(cards: str = "/sys/class/drm") -> Gpus:
    """Return all AMD GPUs with dedicated memory, in the order of their cards."""
    found: Gpus = []
    for card in sorted(glob.glob(f"{cards}/card*"), key=_card):
        device = f"{card}/device"
        total = number_of(f"{device}/mem_info_vram_total")
        if _card(card) < 0 or total is None or paths.text_of(f"{device}/vendor") != AMD:
            continue
        found.append({"index": len(found), **_amd(device), "memory_total": total})
    return found[: nvml.MOST_GPUS]


def _card(path: str) -> int:
    """Return the number of a card; -1 for its connectors, as card0-DP-1."""
    number = os.path.basename(path)[len("card") :]
    return int(number) if number.isdigit() else -1


def _amd(device: str) -> Dict[str, Any]:
    (sensors, *_) = sorted(glob.glob(f"{device}/hwmon/hwmon*")) or [""]
    busy = number_of(f"{device}/gpu_busy_percent")
    microwatts = number_of(f"{sensors}/power1_average") or number_of(f"{sensors}/power1_input")
    # temp2 is the junction, where there is one: the hottest place, and what the clocks depend on
    millidegrees = number_of(f"{sensors}/temp2_input") or number_of(f"{sensors}/temp1_input")
    hertz = number_of(f"{sensors}/freq1_input")
    return {
        "busy": None if busy is None else busy / 100,
        "memory_used": number_of(f"{device}/mem_info_vram_used"),
        "power": None if microwatts is None else microwatts / 1e6,
        "temperature": None if millidegrees is None else millidegrees / 1000,
        "clock": None if hertz is None else hertz // 1_000_000,
    }
