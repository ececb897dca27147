"""Accelerators of this node, by what the kernel shows: device files and PCI devices.

No program is run, so that it is fast enough to ask before every run. Sources of the device files:

nvidia  the driver makes /dev/nvidiaN (NVIDIA driver's README, "Device Nodes").
amd     one /dev/kfd for all; the GPUs are nodes with SIMDs below /sys/class/kfd, of which a
        container can read only its own (Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c).
intel   a render node whose PCI vendor is 0x8086 and whose driver is `xe` or `i915`. The one at
        0000:00:02.0 is part of a processor and is left out.
ascend  /dev/davinciN, one per chip (Ascend/ascend-docker-runtime).
gaudi   /dev/accel/accelN of vendor 0x1da3, before Linux 6.8's driver /dev/hlN (habanalabs).
neuron  /dev/neuronN (AWS Neuron driver).
mlu     /dev/cambricon_devN (Cambricon/cambricon-k8s-device-plugin).
"""

from __future__ import annotations

import os

from dslaunch.node import paths

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Dict

DEV = "/dev"
PCI = "/sys/bus/pci/devices"
ACCEL = "/sys/class/accel"
KFD = "/sys/class/kfd/kfd/topology/nodes"
RENDER = "/sys/class/drm"
PROCESSOR_GRAPHICS = "0000:00:02.0"
"""The address of the graphics in Intel's processors."""
NUMBERED = {
    "nvidia": "nvidia",
    "ascend": "davinci",
    "gaudi": "hl",
    "neuron": "neuron",
    "mlu": "cambricon_dev",
}
"""Beginnings of the names of device files that end with a number."""
ON_BUS = {
    "0x10de": ("nvidia", ("0x0300", "0x0302")),
    "0x1002": ("amd", ("0x0302", "0x0380", "0x1200")),
    "0x8086": ("intel", ("0x0300", "0x0302", "0x0380")),
    "0x19e5": ("ascend", ("0x1200",)),
    "0x1da3": ("gaudi", ("0x1200", "0x0380")),
    "0xcabc": ("mlu", ("0x1200",)),
}
"""PCI vendor -> whose accelerators these are, and which PCI classes (the first 4 digits) they have.

AMD's 0x0300 is left out: processors with graphics have it, accelerators for servers do not.
"""


def found() -> Dict[str, Dict[str, int]]:
    """Count accelerators by vendor: `devices` that programs can open, and the PCI `bus`."""
    devices = {vendor: _numbered(start) for vendor, start in NUMBERED.items()}
    devices["amd"] = _amd()
    devices["intel"] = _intel()
    devices["gaudi"] += _gaudi()
    bus = _on_bus()
    return {
        vendor: {"devices": count, "bus": bus.get(vendor, 0)}
        for vendor, count in devices.items()
        if count or bus.get(vendor, 0)
    }


def _numbered(start: str) -> int:
    """Count device files that are `start` and a number."""
    names = [name[len(start) :] for name in paths.entries(DEV) if name.startswith(start)]
    return sum(number.isdigit() for number in names)


def _amd() -> int:
    if not os.path.exists(f"{DEV}/kfd"):
        return 0
    texts = [paths.text_of(f"{KFD}/{node}/properties") for node in paths.entries(KFD)]
    return sum(_simds(text) > 0 for text in texts)


def _simds(properties: str) -> int:
    """Return the number of SIMDs of a node of KFD; a processor has none."""
    for line in properties.splitlines():
        name, _, value = line.partition(" ")
        if name == "simd_count" and value.isdigit():
            return int(value)
    return 0


def _intel() -> int:
    """Count render nodes of discrete GPUs that are in /dev too: containers see all of /sys."""
    count = 0
    for name in paths.entries(RENDER):
        device = os.path.realpath(f"{RENDER}/{name}/device")
        driver = os.path.basename(os.path.realpath(f"{device}/driver"))
        count += (
            name.startswith("renderD")
            and os.path.exists(f"{DEV}/dri/{name}")
            and paths.text_of(f"{device}/vendor") == "0x8086"
            and driver in ("xe", "i915")
            and os.path.basename(device) != PROCESSOR_GRAPHICS
        )
    return count


def _gaudi() -> int:
    names = [name for name in paths.entries(ACCEL) if name.startswith("accel")]
    return sum(paths.text_of(f"{ACCEL}/{name}/device/vendor") == "0x1da3" for name in names)


def _on_bus() -> Dict[str, int]:
    count: Dict[str, int] = {}
    for address in paths.entries(PCI):
        vendor, classes = ON_BUS.get(paths.text_of(f"{PCI}/{address}/vendor"), ("", ()))
        kind = paths.text_of(f"{PCI}/{address}/class")[:6]
        if kind in classes and not (vendor == "intel" and address == PROCESSOR_GRAPHICS):
            count[vendor] = count.get(vendor, 0) + 1
    return count
