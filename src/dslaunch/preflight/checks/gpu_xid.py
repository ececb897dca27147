"""What the driver has written into the kernel's log about broken GPUs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Level, Verdict, passed
from dslaunch.preflight.checks import _kernel as kernel
from dslaunch.preflight.checks import _nvidia as nvidia

TOLD = 16
HARDWARE = frozenset((48, 56, 57, 58, 62, 63, 64, 68, 69, 73, 74, 79, 80, 81, 92, 94, 95, 119, 120))
"""That Imbue's and Azure's health checks agree on, and contained and uncontained memory errors."""
RECOVERY = 154
"""It tells that the driver wants a reset or reboot."""
NAMES = {
    48: "double-bit memory error",
    62: "internal controller halt",
    63: "row remapped or page retired",
    64: "row could not be remapped",
    74: "NVLink error",
    79: "fell off the bus",
    92: "many single-bit memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP timeout",
    120: "GSP error",
    RECOVERY: "recovery wanted",
}
"""In NVIDIA's words, cut short (Xid catalogue)."""
_XID = re.compile(
    r"^(?:\[\s*(?P<time>\d+\.\d+)\])?.*"
    r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]{1,32})\): (?P<xid>\d{1,4})\b",
    re.MULTILINE,
)


def errors(text: str, hours: float) -> Counter[tuple[int, str]]:
    """Xids with the GPU's bus address, and how often; a line whose time cannot be told counts."""
    since = kernel.since(text, hours)
    return Counter(
        (int(m["xid"]), m["bus"])
        for m in _XID.finditer(text)
        if m["time"] is None or float(m["time"]) >= since
    )


def _judge(a: Answers) -> Iterator[Verdict]:
    found = errors(kernel.log(a), a.limits["hours"])
    levels: dict[Level, list[str]] = {}
    for (xid, bus), times in found.items():
        words = f"Xid {xid}{f' ({NAMES[xid]})' if xid in NAMES else ''} on {bus}"
        level: Level = "fail" if xid in HARDWARE or xid == RECOVERY else "info"
        levels.setdefault(level, []).append(words + (f" {times} times" if times > 1 else ""))
    for level, words_of in levels.items():
        more = f"; and {len(words_of) - TOLD} more" if len(words_of) > TOLD else ""
        yield Verdict(level, "; ".join(words_of[:TOLD]) + more, "no hardware errors")
    if "fail" not in levels:
        yield passed("no hardware errors in the kernel's log")


CHECK = Check(
    title="the driver has logged no hardware errors",
    tier="static",
    why="The driver logs an Xid when a GPU, its memory or its links fail, often hours before a job "
    "is hit. Xids of a program's own mistakes (13, 31, 43, 45) are only told.",
    fix="see NVIDIA's Xid catalogue for the number; most want a reset of the GPU or a reboot, 79 a "
    "power cycle",
    see="sudo dmesg -T | grep -i xid",
    source="NVIDIA Xid catalogue; imbue-ai/cluster-health, AzureHPC health checks (2 hours)",
    ask=nvidia.ask,
    flow=nvidia.where_up(_judge, kernel=kernel.LOG),
    limits={"hours": 2},
    limits_mean="hours back that are looked at",
)
