"""Whether network cards can reach GPU memory by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dslaunch.preflight.check import (
    Answers,
    Asked,
    Check,
    Question,
    Scope,
    Verdict,
    passed,
    skipped,
)
from dslaunch.preflight.checks import _infiniband as infiniband
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.checks import _wiring as wiring

MODULES = Question("read", ["/sys/module/nvidia_peermem/*", "/sys/module/nv_peer_mem/*"])
DMABUF = (5, 12)
"""The Linux that lets RDMA devices use another device's memory."""


def _judge(a: Answers) -> Iterator[Verdict]:
    if not infiniband.in_use(a):
        yield skipped("no InfiniBand or RoCE")
    elif a["modules"]:
        yield passed("nvidia-peermem is loaded")
    elif _dmabuf(a):
        yield passed("the open driver and this kernel share memory by dma-buf")
    else:
        yield Verdict("warn", "neither nvidia-peermem nor dma-buf", "one of them")


def _dmabuf(a: Answers) -> bool:
    """Only the open kernel modules give GPU memory out as dma-buf."""
    kernel = re.match(r"(\d+)\.(\d+)", a.hello.get("kernel", ""))
    new = kernel is not None and (int(kernel[1]), int(kernel[2])) >= DMABUF
    return new and "Open Kernel" in " ".join(a["driver"].values())


def _ask(scope: Scope) -> Asked:
    return {**nvidia.ask(scope), "ports": wiring.PORTS, "modules": MODULES}


CHECK = Check(
    title="network cards can reach GPU memory",
    tier="static",
    why="Without GPUDirect RDMA all traffic between nodes is copied through host memory, and is 2 "
    "to "
    "4 times slower.",
    fix="`modprobe nvidia-peermem`, and name it in /etc/modules-load.d; or use the open driver on "
    "Linux 5.12 or newer",
    see="lsmod | grep -e peermem -e peer_mem",
    source="NCCL documentation, GPUDirect RDMA; imbue-ai/cluster-health",
    ask=_ask,
    flow=nvidia.where_up(_judge),
)
