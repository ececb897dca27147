"""What the ranks run on: the accelerators that the nodes have, held against the slots in use."""

from __future__ import annotations

from dslaunch.cluster.model import Allocation, Placement
from dslaunch.errors import ErrorCode, PreflightError
from dslaunch.launch.decisions import Decision, DecisionCode, decision
from dslaunch.launch.facts import Facts, NodeFacts
from dslaunch.plural import counted

NAMES = {
    "nvidia": "NVIDIA GPU",
    "amd": "AMD GPU",
    "intel": "Intel XPU",
    "ascend": "Ascend NPU",
    "gaudi": "Intel Gaudi",
    "neuron": "AWS Neuron device",
    "mlu": "Cambricon MLU",
}
"""How people call one accelerator of each vendor."""
ONE_RANK_EACH = frozenset(("amd", "ascend", "gaudi", "mlu"))
"""Vendors whose devices are what ranks count. A card of Intel's Data Center GPU Max series is two
devices to PyTorch (ZE_FLAT_DEVICE_HIERARCHY=FLAT), and a Neuron device has several cores."""


def has_accelerator(node: NodeFacts) -> bool:
    """Whether a node has an accelerator of any vendor, with or without a working driver."""
    return node.gpus is not None or node.gpu_error is not None or bool(node.accelerators)


def check_devices(allocation: Allocation, facts: Facts) -> tuple[Decision, ...]:
    """Compare accelerators with the slots in use, and say what the ranks run on.

    Raises PreflightError if a node has fewer than a used slot needs.
    """
    problems = [
        problem
        for placement, node in zip(allocation.placements, facts.nodes, strict=True)
        for problem in _problems(placement, node)
    ]
    if problems:
        hint = "correct `slots`, or leave the node out: -e NODE"
        code = ErrorCode.TOO_FEW_DEVICES
        raise PreflightError("\n".join(problems), hint=hint, code=code)
    if not any(map(has_accelerator, facts.nodes)):
        return (decision(DecisionCode.DEVICES_CPU),)
    described = {node.host: _described(node) for node in facts.nodes}
    devices = tuple(sorted({words for words, _ in described.values()}))
    sources = tuple(sorted({source for _, source in described.values()}))
    return (decision(DecisionCode.DEVICES_FOUND, devices=devices, sources=sources),)


def _problems(placement: Placement, node: NodeFacts) -> list[str]:
    last = placement.slots[-1]
    found = []
    if node.gpu_error:
        found.append(f"{node.host}: nvidia-smi: {node.gpu_error}")
    if node.gpus is not None and node.gpus <= last and not _others(node):
        listed = counted(node.gpus, "GPU")
        found.append(f"{node.host}: slot {last} is used, but the driver lists {listed}")
    for vendor, devices in _others(node).items():
        if vendor in ONE_RANK_EACH and devices <= last and not node.gpus:
            there = counted(devices, NAMES[vendor])
            found.append(f"{node.host}: slot {last} is used, but the node has {there}")
    return found


def _others(node: NodeFacts) -> dict[str, int]:
    """Devices that can be used, of other vendors than NVIDIA, whose driver is asked itself."""
    return {
        each.vendor: each.devices
        for each in node.accelerators
        if each.vendor != "nvidia" and each.devices
    }


def _described(node: NodeFacts) -> tuple[str, str]:
    """What a node has, and how that is known."""
    others = _others(node)
    if node.gpus:
        return counted(node.gpus, "GPU"), "nvidia-smi on each node"
    if others:
        words = " and ".join(counted(count, NAMES[vendor]) for vendor, count in others.items())
        return words, "device files on each node"
    if node.accelerators:
        names = " and ".join(f"{NAMES[each.vendor]}s" for each in node.accelerators)
        return f"{names} not usable by nvidia-smi or a driver", "the PCI bus and /dev"
    if node.gpus == 0:
        return "no GPU", "nvidia-smi on each node"
    return "no accelerator", "device files on each node"
