"""Whether the NVIDIA driver answers."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Verdict, passed, skipped
from dslaunch.preflight.checks import _nvidia as nvidia


def _judge(a: Answers) -> Iterator[Verdict]:
    if nvidia.driver(a) is nvidia.Driver.ABSENT:
        yield skipped(nvidia.Driver.ABSENT.value)
    elif wrong := nvidia.trouble(a):
        yield wrong
    else:
        yield passed("nvidia-smi answers")


CHECK = Check(
    title="the NVIDIA driver answers",
    tier="gate",
    why="Without the driver nothing runs. A driver that was updated under a running kernel, a GPU "
    "that fell off the bus or a hung nvidia-smi each stop all ranks of the node, and with them the "
    "training.",
    fix="see `dmesg | grep -i nvrm`, then reboot the node",
    see="nvidia-smi",
    source="nvidia-smi(1), return value; AzureHPC health checks (20 s)",
    ask=nvidia.ask,
    flow=nvidia.asking(),
    judge=_judge,
)
