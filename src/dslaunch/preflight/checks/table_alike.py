"""Checks that compare one value of the nodes, or of their parts, and do nothing else."""

from __future__ import annotations

from dslaunch.preflight.check import Check, Level, NodeAnswers
from dslaunch.preflight.checks import _infiniband as infiniband
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.checks._machine import CONTAINER, INTERFACES, own_interface, resolve
from dslaunch.preflight.comparison import NodePart, alike, parts_alike
from dslaunch.preflight.flow import compared


def _driver(a: NodeAnswers) -> str | None:
    """The query's field: the banner's word for it changed with driver 610."""
    if nvidia.driver(a) is not nvidia.Driver.UP:
        return None
    return nvidia.gpus(a)[0].text("driver_version")


def _other_branch(version: str, common: str) -> Level:
    return "warn" if version.partition(".")[0] == common.partition(".")[0] else "fail"


def _clocks(a: NodeAnswers) -> list[NodePart]:
    """Return the maximum clock in MHz of the GPUs that report it."""
    if nvidia.driver(a) is not nvidia.Driver.UP:
        return []
    clocks = [(gpu, gpu.number("clocks.max.sm")) for gpu in nvidia.gpus(a)]
    return [
        NodePart(gpu.index, gpu.name, clock, f"maximum clock {clock:.0f} MHz")
        for gpu, clock in clocks
        if clock is not None
    ]


def _firmware(a: NodeAnswers) -> list[NodePart]:
    return [
        NodePart(device.name, of["board_id"], of["fw_ver"], f"firmware {of['fw_ver']}")
        for device in infiniband.devices(a).values()
        if {"board_id", "fw_ver"} <= (of := device.fields).keys()
    ]


def _rates(a: NodeAnswers) -> list[NodePart]:
    return [
        NodePart(port.name, port.name, port.rate, f"{port.rate:g} Gb/s{mode}")
        for port in infiniband.ports(a)
        if port.state == "ACTIVE" and port.rate
        for mode in [f" ({port.mode})" if port.mode else ""]
    ]


def _mtu(a: NodeAnswers) -> str | None:
    own = own_interface(a)
    return f"MTU {own.mtu}" if own is not None and own.mtu is not None else None


CHECKS = {
    "gpu.clocks": Check(
        title="GPUs of one model have the same maximum clock",
        why=(
            "The slowest GPU limits the speed of all: a GPU with a lower maximum clock "
            "is a straggler, without any error."
        ),
        flow=nvidia.queried(
            compare=parts_alike(
                _clocks,
                named=lambda indices: f"GPU {nvidia.listed(indices)}",
                expected="{usual:.0f} MHz, as on most GPUs",
                fine="same maximum clocks",
                untold=True,
            ),
        ),
        fix="run `nvidia-smi -rgc` to reset locked clocks; compare the VBIOS of the GPUs",
        see="nvidia-smi --query-gpu=index,clocks.max.sm --format=csv",
        source="facebookresearch/gcm, clock policy",
    ),
    "gpu.driver-skew": Check(
        title="all nodes have the same NVIDIA driver",
        why=(
            "NCCL is not tested between drivers of different branches, and a newer major "
            "version of CUDA does not start on an older driver: the training fails on "
            "some nodes only."
        ),
        flow=nvidia.queried(
            compare=alike(_driver, found="driver {value}", level=_other_branch, whole=True),
        ),
        fix="install the same driver on all nodes, and reboot them",
        see="nvidia-smi --query-gpu=driver_version --format=csv,noheader",
        source="NVIDIA CUDA compatibility; imbue-ai/cluster-health",
    ),
    "ib.firmware": Check(
        title="InfiniBand and RoCE NICs have the same firmware",
        why="NICs that behave differently under load are hard to find.",
        flow=compared(
            parts_alike(
                _firmware,
                named=infiniband.named,
                expected="{usual}, as on most",
                fine="same firmware",
            ),
            infiniband.ask,
        ),
        fix="update the NIC firmware (`mlxfwmanager`), and reboot",
        see="grep . /sys/class/infiniband/*/fw_ver",
        source="imbue-ai/cluster-health; facebookresearch/gcm",
    ),
    "ib.rate": Check(
        title="InfiniBand and RoCE ports have their full rate",
        why=(
            "A worn cable makes a port negotiate fewer lanes or a lower rate: all-reduce "
            "then runs at the rate of this port."
        ),
        flow=compared(
            parts_alike(
                _rates,
                level="fail",
                named=infiniband.named,
                expected="{usual:g} Gb/s, as on most nodes",
                fine="full rate",
                lower=True,
            ),
            infiniband.ask,
        ),
        fix="reseat or replace the cable at both ends",
        see="grep . /sys/class/infiniband/*/ports/*/rate",
        source="AzureHPC health checks; facebookresearch/gcm",
    ),
    "net.mtu": Check(
        title="all nodes have the same MTU",
        why=(
            "A packet larger than the MTU of the next link is lost if no ICMP error "
            "arrives: small messages pass and the first gradient hangs."
        ),
        flow=compared(
            alike(_mtu, whole=True),
            lambda scope: {"interfaces": INTERFACES, "resolve": resolve(scope)},
        ),
        fix="set the same MTU on all nodes and on the switch; 1500 if in doubt",
        see="ip link; ping -M do -s 8972 NODE",
        source="RFC 2923; pytorch#25767",
    ),
    "sw.container": Check(
        title="all nodes run in containers, or none does",
        why=("A node whose sshd runs outside the container has other packages, limits and paths."),
        flow=compared(
            alike(lambda a: "in a container" if a["files"] else "not in a container", whole=True),
            lambda scope: {"files": CONTAINER},
        ),
        fix="forward the SSH port of that node into the container, as on the other nodes",
        see="ls /.dockerenv /run/.containerenv",
        source="docker and podman: /.dockerenv, /run/.containerenv",
    ),
}
