"""Errors that NVIDIA's driver writes into the kernel log (Xid). Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

HARDWARE = frozenset((48, 56, 57, 58, 62, 63, 64, 68, 69, 73, 74, 79, 80, 81, 92, 94, 95, 119, 120))
"""That Imbue's and Azure's health checks agree on, and contained and uncontained memory errors."""
RECOVERY = 154
"""The driver requests a reset or reboot."""
XIDS = {
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
"""In NVIDIA's words, cut short (Xid catalog)."""
_LINE = re.compile(
    r"^(?:\[\s*(?P<time>\d+\.\d+)\])?.*"
    r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]{1,32})\): (?P<xid>\d{1,4})\b"
    r"(?:, pid=(?P<pid>\d{1,7}),)?",
    re.MULTILINE,
)


class Xid(NamedTuple):
    """One error of a GPU."""

    number: int
    bus: str
    """The GPU's address on the PCI bus."""
    pid: int | None
    """The process that used the GPU; None: the driver does not say."""

    @property
    def is_of_hardware(self) -> bool:
        """Return whether the GPU, and not the program, is the reason."""
        return self.number in HARDWARE or self.number == RECOVERY


def xids(text: str, since: float) -> list[Xid]:
    """Return the errors in a kernel log since this time, in seconds since the node's start; a line
    without a time counts."""
    return [
        Xid(int(m["xid"]), m["bus"], int(m["pid"]) if m["pid"] is not None else None)
        for m in _LINE.finditer(text)
        if m["time"] is None or float(m["time"]) >= since
    ]


def xid_text(number: int) -> str:
    """Return an error in words."""
    return f"Xid {number} ({XIDS[number]})" if number in XIDS else f"Xid {number}"
