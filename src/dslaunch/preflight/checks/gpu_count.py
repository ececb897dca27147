"""Whether a node has the GPUs that its slots promise."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Nodes, Verdict, passed, skipped
from dslaunch.preflight.checks import _nvidia as nvidia


def _mig_devices(a: Answers) -> int | None:
    """How many devices ranks can have on a node with MIG; None: it has none."""
    from dslaunch.topology.inventory import gpu_list

    cut = [bool(gpu.on("mig.mode.current")) for gpu in nvidia.gpus(a)]
    if not any(cut):
        return None
    devices = gpu_list(a.value(nvidia.LIST)["out"])
    return cut.count(False) + sum(gpu.mig for gpu in devices.values())


def _judge(a: Answers) -> Iterator[Verdict]:
    slots, bus, gpus = len(a.node.slots), nvidia.pci_gpus(a), len(nvidia.gpus(a))
    parts = _mig_devices(a)
    there, what = gpus, "GPU" if gpus == 1 else "GPUs"
    if parts is not None:
        there, what, bus = parts, "MIG devices and GPUs", 0
    if parts is not None and there < slots <= gpus:
        yield skipped("gpu.mig tells of it")
    elif there < slots:
        on_bus = f", {bus} on the PCI bus" if bus else ""
        yield Verdict("fail", f"{there} {what} for {slots} slots{on_bus}", f"{slots} GPUs")
    elif there < bus:
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
    flow=nvidia.where_up(_judge, list=nvidia.LIST),
    compare=_compare,
)
