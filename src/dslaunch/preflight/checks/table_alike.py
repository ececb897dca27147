"""Checks that compare one value of the nodes, or of their parts, and do nothing else."""

from __future__ import annotations

from dslaunch.preflight.check import Check, Level, NodeAnswers
from dslaunch.preflight.checks import _infiniband as infiniband
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.checks._machine import CONTAINER, INTERFACES, own_interface, resolve
from dslaunch.preflight.comparison import Component, alike, parts_alike


def _driver(a: NodeAnswers) -> str | None:
    """The query's field: the banner's word for it changed with driver 610."""
    if nvidia.driver(a) is not nvidia.Driver.UP:
        return None
    return nvidia.gpus(a)[0].text("driver_version")


def _other_branch(version: str, common: str) -> Level:
    return "warn" if version.partition(".")[0] == common.partition(".")[0] else "fail"


def _clocks(a: NodeAnswers) -> list[Component]:
    """Of the GPUs that tell it: their highest clock in MHz."""
    if nvidia.driver(a) is not nvidia.Driver.UP:
        return []
    clocks = [(gpu, gpu.number("clocks.max.sm")) for gpu in nvidia.gpus(a)]
    return [
        Component(gpu.index, gpu.name, clock, f"at most {clock:.0f} MHz")
        for gpu, clock in clocks
        if clock is not None
    ]


def _firmware(a: NodeAnswers) -> list[Component]:
    return [
        Component(device.name, of["board_id"], of["fw_ver"], f"firmware {of['fw_ver']}")
        for device in infiniband.devices(a).values()
        if {"board_id", "fw_ver"} <= (of := device.fields).keys()
    ]


def _rates(a: NodeAnswers) -> list[Component]:
    return [
        Component(port.name, port.name, port.rate, f"{port.rate:g} Gb/s{mode}")
        for port in infiniband.ports(a)
        if port.state == "ACTIVE" and port.rate
        for mode in [f" ({port.mode})" if port.mode else ""]
    ]


def _mtu(a: NodeAnswers) -> str | None:
    own = own_interface(a)
    return f"MTU {own['mtu']}" if own is not None and own["mtu"] is not None else None


CHECKS = {
    "gpu.clocks": Check(
        title="GPUs of one kind have the same highest clock",
        why="The slowest GPU sets the pace of all: a lower highest clock is a straggler that no "
        "error tells of.",
        ask=nvidia.ask,
        flow=nvidia.asking(),
        compare=parts_alike(
            _clocks,
            named=lambda indices: f"GPU {nvidia.listed(indices)}",
            expected="{usual:.0f} MHz as most",
            fine="equal highest clocks",
            untold=True,
        ),
        fix="`nvidia-smi -rgc` takes back locked clocks; compare the firmware of the GPUs",
        see="nvidia-smi --query-gpu=index,clocks.max.sm --format=csv",
        source="facebookresearch/gcm, clock policy",
    ),
    "gpu.driver-skew": Check(
        title="all nodes have the same NVIDIA driver",
        why="NCCL is not tested between drivers of different branches, and a CUDA of a newer major "
        "version does not start on the older driver: the training fails on some nodes only.",
        ask=nvidia.ask,
        flow=nvidia.asking(),
        compare=alike(_driver, found="driver {value}", level=_other_branch, whole=True),
        fix="install the same driver on all nodes, and reboot them",
        see="nvidia-smi --query-gpu=driver_version --format=csv,noheader",
        source="NVIDIA CUDA compatibility; imbue-ai/cluster-health",
    ),
    "ib.firmware": Check(
        title="InfiniBand and RoCE cards have the same firmware",
        why="Nodes whose cards behave differently under load are among the hardest to find.",
        ask=infiniband.ask,
        compare=parts_alike(
            _firmware,
            named=infiniband.named,
            expected="{usual} as most",
            fine="the same firmware",
        ),
        fix="update the cards' firmware (`mlxfwmanager`), and reboot",
        see="grep . /sys/class/infiniband/*/fw_ver",
        source="imbue-ai/cluster-health; facebookresearch/gcm",
    ),
    "ib.rate": Check(
        title="InfiniBand and RoCE ports have their full rate",
        why="A worn cable makes a port come up with fewer lanes or an older rate: all-reduce then "
        "runs at the rate of this one port.",
        ask=infiniband.ask,
        compare=parts_alike(
            _rates,
            level="fail",
            named=infiniband.named,
            expected="{usual:g} Gb/s as on most nodes",
            fine="full rate",
            lower=True,
        ),
        fix="reseat or change the cable, at both ends",
        see="grep . /sys/class/infiniband/*/ports/*/rate",
        source="AzureHPC health checks; facebookresearch/gcm",
    ),
    "net.mtu": Check(
        title="all nodes send packets of the same size",
        why="Where a packet is larger than the next link takes, and nobody says so, it is lost: "
        "small messages pass and the first gradient hangs.",
        ask=lambda scope: {"interfaces": INTERFACES, "resolve": resolve(scope)},
        compare=alike(_mtu, whole=True),
        fix="the same MTU on all nodes and on the switch; 1500 where in doubt",
        see="ip link; ping -M do -s 8972 NODE",
        source="RFC 2923; pytorch#25767",
    ),
    "sw.container": Check(
        title="all logins are into containers, or none is",
        why="A node whose sshd runs beside the container has other packages, limits and paths.",
        ask=lambda scope: {"files": CONTAINER},
        compare=alike(
            lambda a: "in a container" if a["files"] else "not in a container", whole=True
        ),
        fix="let the port of that node lead into the container, as on the others",
        see="ls /.dockerenv /run/.containerenv",
        source="docker and podman: /.dockerenv, /run/.containerenv",
    ),
}
