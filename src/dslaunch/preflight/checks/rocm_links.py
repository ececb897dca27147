"""Whether AMD GPUs of a node reach each other over XGMI, and alike on all nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dslaunch.plural import counted
from dslaunch.preflight.check import Answers, Check, Verdict, passed, skipped
from dslaunch.preflight.checks import _accelerators as accelerators
from dslaunch.preflight.checks import _rocm as rocm
from dslaunch.preflight.checks._alike import alike
from dslaunch.preflight.checks._rocm import Told


def _judge(told: Told, a: Answers) -> Iterator[Verdict]:
    del a
    kinds = Counter(told.links.values())
    if len(told.gpus) < 2:
        yield skipped("one GPU")
    elif not kinds or set(kinds) - {"XGMI", "PCIE"}:
        yield Verdict("unknown", "the link types cannot be read")
    elif len(kinds) == 2:
        slow = ", ".join(f"{x}-{y}" for (x, y), kind in told.links.items() if kind == "PCIE")
        words = f"{counted(kinds['PCIE'], 'pair')} of GPUs over PCIe: {slow[:200]}"
        yield Verdict("warn", words, f"XGMI as the other {counted(kinds['XGMI'], 'pair')}")
    else:
        yield passed(f"{next(iter(kinds))} between all GPUs")


def _kinds(a: Answers) -> str:
    kinds = Counter(rocm.told(a).links.values())
    return ", ".join(
        f"{counted(times, 'pair')} over {kind}" for kind, times in sorted(kinds.items())
    )


CHECK = Check(
    title="AMD GPUs are linked by XGMI, alike on all nodes",
    tier="static",
    why="A pair of GPUs that has lost its XGMI links goes over PCIe, several times slower, and all "
    "ranks wait for it.",
    fix="reboot the node; if the links are still missing, have the board's bridges checked",
    see="rocm-smi --showtopo; rocm-smi --showxgmierr",
    source="ROCm documentation, MI200 and MI300 system optimization, Hardware verification",
    ask=accelerators.ask,
    flow=rocm.where_there(_judge),
    compare=alike(_kinds),
)
