"""Parse `nvidia-smi nvlink`. Pure.

Pass texts without UUIDs (`inventory.without_uuids`): nodes with equal GPUs then share one result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct

_GPU = re.compile(r"^GPU (\d{1,4}): ")
_LINK = re.compile(r"^(\s*)Link (\d{1,3}): (?:(\d{1,9}(?:\.\d{1,9})?) GB/s|<inactive>)\s*$")
_COUNTER = re.compile(r"^\s+Link (\d{1,3}): (Replay|Recovery|CRC) Errors: (\d{1,18})\s*$")
_NO_LINKS_WITH_MIG = "not supported for Devices in MIG mode"


class NvlinkStatus(Struct, frozen=True):
    """The output of `nvidia-smi nvlink -s`."""

    gpus: Mapping[int, Mapping[int, float]]
    """GPU and link -> GB/s; 0: inactive."""
    complete: bool
    """Whether every line is a GPU or an indented link, and the last line ends with a newline.
    Pasted text is often incomplete; the answer of a node must be complete."""
    mig: bool
    """Whether the driver reports no links because MIG is enabled."""


@lru_cache(maxsize=64)
def nvlink_status(text: str) -> NvlinkStatus:
    """Parse `nvidia-smi nvlink -s`; lines of another form are skipped."""
    gpus: dict[int, dict[int, float]] = {}
    index = None
    complete = text.endswith("\n")
    for line in text.splitlines():
        # nearly all lines are links
        if link := _LINK.match(line):
            if index is not None:
                gpus[index][int(link[2])] = float(link[3] or 0)
            complete = complete and bool(link[1])
        elif gpu := _GPU.match(line):
            index = int(gpu[1])
            gpus[index] = {}
        elif line.strip():
            complete = False
    return NvlinkStatus(gpus, complete, _NO_LINKS_WITH_MIG in text)


@lru_cache(maxsize=64)
def nvlink_errors(text: str) -> Mapping[tuple[int, str], Mapping[int, int]]:
    """Parse `nvidia-smi nvlink -e`: GPU and kind -> errors of each link."""
    found: dict[tuple[int, str], dict[int, int]] = {}
    index = None
    for line in text.splitlines():
        # nearly all lines are counters
        if link := _COUNTER.match(line):
            if index is not None:
                found.setdefault((index, link[2]), {})[int(link[1])] = int(link[3])
        elif gpu := _GPU.match(line):
            index = int(gpu[1])
    return found
