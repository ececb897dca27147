"""How many errors the NVLinks have counted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from dslaunch.preflight.check import Answers, Check, Verdict, passed, skipped
from dslaunch.preflight.checks import _nvidia as nvidia

_GPU = re.compile(r"^GPU (\d{1,4}): ")
_COUNTER = re.compile(r"^\s+Link (\d{1,3}): (Replay|Recovery|CRC) Errors: (\d{1,18})\s*$")


@lru_cache(maxsize=64)
def counters(text: str) -> Mapping[tuple[int, str], Mapping[int, int]]:
    """Read `nvidia-smi nvlink -e`: by GPU and kind, the errors of each link."""
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


def _judge(a: Answers) -> Iterator[Verdict]:
    from dslaunch.topology.inventory import without_uuids

    found = counters(without_uuids(a.value(nvidia.NVLINK_ERRORS)["out"]))
    if not found:
        yield skipped("these GPUs or this driver do not tell")
        return
    fine = True
    for (gpu, kind), of in found.items():
        limit = a.limits["crc" if kind == "CRC" else "warn"]
        bad = [link for link, errors in of.items() if errors >= limit]
        if bad:
            fine = False
            errors = max(of[link] for link in bad)
            words = f"GPU {gpu}: NVLink {nvidia.listed(bad)}: {errors} {kind.lower()} errors"
            yield Verdict("warn", words, "few")
    if fine:
        yield passed("few NVLink errors")


CHECK = Check(
    title="NVLinks count few errors",
    tier="static",
    why="A link that repeats its packets is slow, and often the one that fails next.",
    fix="see whether the numbers grow while the GPUs work; reset the GPUs, then have the board "
    "looked at",
    see="nvidia-smi nvlink -e",
    source="imbue-ai/cluster-health (5 replays or recoveries); NVIDIA DCGM (100 CRC errors)",
    ask=nvidia.ask,
    flow=nvidia.where_up(_judge, nvlink_errors=nvidia.NVLINK_ERRORS),
    limits={"warn": 5, "crc": 100},
    limits_mean="errors of one link since the driver was loaded, from which it warns",
)
