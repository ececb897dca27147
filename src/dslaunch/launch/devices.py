"""Compare the accelerators of the nodes with the slots in use. Pure."""

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
"""The name of one accelerator of each vendor."""
ONE_RANK_EACH = frozenset(("amd", "ascend", "gaudi", "mlu"))
"""Vendors with one rank per device. Not Intel: PyTorch sees a Data Center GPU Max as two devices
(ZE_FLAT_DEVICE_HIERARCHY=FLAT). Not Neuron: a device has several cores."""


def has_accelerator(node: NodeFacts) -> bool:
    """Return whether a node has an accelerator of any vendor, with or without a working driver."""
    return node.gpus is not None or node.gpu_error is not None or bool(node.accelerators)


def check_devices(allocation: Allocation, facts: Facts) -> tuple[Decision, ...]:
    """Return the decision about the devices of the ranks: accelerators or CPUs.

    Raises PreflightError if a slot in use has no accelerator.
    """
    problems = [
        problem
        for placement, node in zip(allocation.placements, facts.nodes, strict=True)
        for problem in _problems(placement, node)
    ]
    if problems:
        raise PreflightError.coded(ErrorCode.TOO_FEW_DEVICES, lines=tuple(problems))
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
        found.append(f"{node.host}: slot {last} in use, {listed} found by nvidia-smi")
    for vendor, devices in _others(node).items():
        if vendor in ONE_RANK_EACH and devices <= last and not node.gpus:
            there = counted(devices, NAMES[vendor])
            found.append(f"{node.host}: slot {last} in use, {there} found")
    return found


def _others(node: NodeFacts) -> dict[str, int]:
    """Return the number of usable devices by vendor, except NVIDIA, which nvidia-smi counts."""
    return {
        each.vendor: each.devices
        for each in node.accelerators
        if each.vendor != "nvidia" and each.devices
    }


def _described(node: NodeFacts) -> tuple[str, str]:
    """Return the accelerators of a node as text, and their source."""
    others = _others(node)
    if node.gpus:
        return counted(node.gpus, "GPU"), "nvidia-smi on each node"
    if others:
        words = " and ".join(counted(count, NAMES[vendor]) for vendor, count in others.items())
        return words, "device files on each node"
    if node.accelerators:
        names = " and ".join(f"{NAMES[each.vendor]}s" for each in node.accelerators)
        return f"{names} without a working driver", "the PCI bus and /dev"
    if node.gpus == 0:
        return "no GPU", "nvidia-smi on each node"
    return "no accelerator", "device files on each node"
