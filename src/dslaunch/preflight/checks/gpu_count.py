"""Whether a node has the GPUs that its slots promise."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import (
    Answers,
    Check,
    Nodes,
    Verdict,
    passed,
    skipped,
)
from dslaunch.preflight.checks import _nvidia as nvidia


def count(a: Answers) -> tuple[int, str]:
    """How many devices ranks can have, and what they are: with MIG, its devices."""
    from dslaunch.topology.inventory import gpu_list

    found = nvidia.gpus(a)
    if any(gpu.on("mig.mode.current") for gpu in found):
        devices = gpu_list(a.value(nvidia.LIST)["out"])
        whole = sum(not gpu.on("mig.mode.current") for gpu in found)
        return whole + sum(gpu.mig for gpu in devices.values()), "MIG devices and GPUs"
    return len(found), "GPU" if len(found) == 1 else "GPUs"


def _judge(a: Answers) -> Iterator[Verdict]:
    there, what = count(a)
    slots, bus = len(a.node.slots), nvidia.pci_gpus(a)
    if what.startswith("MIG") and there < slots <= len(nvidia.gpus(a)):
        yield skipped("gpu.mig tells of it")
    elif there < slots:
        found = f"{there} {what} for {slots} slots" + (
            f", {bus} on the PCI bus" if bus and what.startswith("GPU") else ""
        )
        yield Verdict("fail", found, f"{slots} GPUs")
    elif what.startswith("GPU") and there < bus:
        found = f"the driver shows {there} of {bus} GPUs on the PCI bus"
        yield Verdict("warn", found, "all of them")
    elif there > slots:
        fix = f"set `slots: {there}` in the cluster file, if all are to be used"
        yield Verdict("warn", f"{there} {what} for {slots} slots", f"{slots} GPUs", fix)
    else:
        yield passed(f"{there} {what}")


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    """A node without any GPU among nodes that have some."""
    without = tuple(h for h, a in nodes.items() if nvidia.driver(a) is nvidia.Driver.ABSENT)
    if without and nvidia.up(nodes):
        hosts = tuple(host for host in without if nodes[host].has("pci"))
        if hosts:
            found = nvidia.Driver.ABSENT.value
            yield Verdict("fail", found, "GPUs as the other nodes have", hosts=hosts)


CHECK = Check(
    title="a node has as many GPUs as slots",
    tier="gate",
    why="A rank whose GPU is not there fails at once, or takes the GPU of another and both run out "
    "of memory. GPUs are what fails most: 59 % of the unexpected interruptions of Llama 3 405B.",
    fix="see `dmesg | grep -i -e nvrm -e xid`; reseat or power-cycle; correct `slots:` if that is "
    "what the node has",
    see="nvidia-smi -L; lspci -d 10de:",
    source="The Llama 3 Herd of Models, 2024, table 5; leptonai/gpud, facebookresearch/gcm",
    ask=nvidia.ask,
    then=nvidia.then(list=nvidia.LIST),
    judge=nvidia.where_up(_judge),
    compare=_compare,
)
