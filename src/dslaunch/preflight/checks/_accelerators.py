"""Accelerators of vendors other than NVIDIA: what all their checks ask and judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dslaunch.launch.devices import NAMES, ONE_RANK_EACH
from dslaunch.plural import counted
from dslaunch.preflight.check import Asked, Finding, NodeAnswers, Question, Scope, passed

QUESTION = Question("accelerators")
HOW_TO_LOAD = {
    "amd": (
        "load the driver (`modprobe amdgpu`), or start the container with --device "
        "/dev/kfd --device /dev/dri"
    ),
    "intel": ("load the driver (`modprobe xe`), or start the container with --device /dev/dri"),
    "ascend": (
        "install the Ascend driver, or pass /dev/davinciN and /dev/davinci_manager to the container"
    ),
}
SEE = {
    "amd": "lspci -d 1002:; ls -l /dev/kfd",
    "intel": "lspci -d 8086:; ls -l /dev/dri; xpu-smi discovery",
    "ascend": "lspci -d 19e5:; ls -l /dev/davinci*; npu-smi info",
    "gaudi": "lspci -d 1da3:; ls -l /dev/accel; hl-smi",
    "neuron": "ls -l /dev/neuron*; neuron-ls",
    "mlu": "lspci -d cabc:; ls -l /dev/cambricon*; cnmon",
}


def ask(scope: Scope) -> Asked:
    """What costs a node nothing."""
    del scope
    return {"accelerators": QUESTION}


def of_vendor(a: NodeAnswers, vendor: str) -> Mapping[str, int] | None:
    """Return how many `devices` and how many on the `bus` a node has; None: neither.

    Raises UnansweredError.
    """
    found: Mapping[str, int] | None = a["accelerators"].get(vendor)
    return found


def count(a: NodeAnswers, vendor: str) -> Iterator[Finding]:
    """Hold the accelerators of one vendor against the node's slots."""
    found = of_vendor(a, vendor)
    if found is None:
        return
    devices, bus, slots = found["devices"], found["bus"], len(a.kind.slots)
    name, see = NAMES[vendor], SEE[vendor]
    there = counted(devices, name)
    if not devices:
        words = f"{counted(bus, name)} on the PCI bus, but no device file"
        fix = HOW_TO_LOAD.get(
            vendor, "install the driver, or pass the device files to the container"
        )
        yield Finding("fail", words, f"{slots} usable", fix, see)
    elif vendor not in ONE_RANK_EACH:
        yield passed(there)
    elif devices < slots:
        fix = (
            "look for driver errors in `dmesg`; correct `slots:` if the node has fewer accelerators"
        )
        yield Finding("fail", f"{there} found for {counted(slots, 'slot')}", str(slots), fix, see)
    elif devices < bus:
        words = f"{devices} of {counted(bus, name)} on the PCI bus are visible to the driver"
        yield Finding(
            "warn", words, "all of them visible", "look for driver errors in `dmesg`", see
        )
    elif devices > slots:
        fix = f"set `slots: {devices}` in the cluster file to use all of them"
        yield Finding("warn", f"{there} found for {counted(slots, 'slot')}", str(slots), fix, see)
    else:
        yield passed(there)
