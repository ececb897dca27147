"""Whether all nodes have the same driver."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Check, Nodes, Verdict, as_on, odd_ones
from dslaunch.preflight.checks import _nvidia as nvidia


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    """The query's field: the banner's word for it changed with driver 610."""
    told, untold = nvidia.each_node(nodes, lambda a: nvidia.gpus(a)[0].text("driver_version"))
    yield from untold
    versions = {host: version for host, version in told.items() if version}
    odd: set[str] = set()
    for version, hosts, common, number in odd_ones(versions):
        odd |= {*hosts}
        major = version.partition(".")[0] != common.partition(".")[0]
        yield Verdict(
            "fail" if major else "warn", f"driver {version}", as_on(common, number),
            hosts=hosts,
        )  # fmt: skip
    if fine := tuple(host for host in versions if host not in odd):
        yield Verdict("pass", f"driver {versions[fine[0]]}", hosts=fine)


CHECK = Check(
    title="all nodes have the same NVIDIA driver",
    tier="static",
    why="NCCL is not tested between drivers of different branches, and a CUDA of a newer major "
    "version does not start on the older driver: the training fails on some nodes only.",
    fix="install the same driver on all nodes, and reboot them",
    see="nvidia-smi --query-gpu=driver_version --format=csv,noheader",
    source="NVIDIA CUDA compatibility; imbue-ai/cluster-health",
    ask=nvidia.ask,
    then=nvidia.then(),
    compare=_compare,
)
