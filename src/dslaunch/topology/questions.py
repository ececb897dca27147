"""What to ask a node, and how: the names of the answers that `read` takes.

Every command only reads, needs no root, and may fail: what it printed until then is the answer.
What is said instead of a matrix counts too, so `topo_m` takes standard error along.
`{peer}` stands for the address of another node, quoted for a shell.
"""

from __future__ import annotations

from dataclasses import dataclass

NVIDIA_SMI = "nvidia-smi"


@dataclass(frozen=True, slots=True)
class Question:
    """One command for a POSIX shell on the node."""

    command: str
    about: str
    """What its answer is read for."""


_IB = "/sys/class/infiniband/*"
_FILES = (
    "/var/run/nvidia-topologyd/virtualTopology.xml /opt/microsoft/*topo*.xml "
    "/opt/microsoft/*/topo.xml /opt/amazon/ofi-nccl/share/aws-ofi-nccl/xml/*topo*.xml"
)

COMMANDS = {
    "topo_m": Question(f"{NVIDIA_SMI} topo -m 2>&1", "links between GPUs and NICs, CPU and NUMA"),
    "p2p": Question(f"{NVIDIA_SMI} topo -p2p r", "which GPUs can read each other's memory"),
    "gpu_list": Question(f"{NVIDIA_SMI} -L", "models, MIG devices"),
    "gpu_query": Question(
        f"{NVIDIA_SMI} --query-gpu=index,name,memory.total,pci.bus_id,driver_version --format=csv",
        "models, memory, driver",
    ),
    "nvlink": Question(f"{NVIDIA_SMI} nvlink -s", "which NVLinks are active"),
    "ib": Question(
        f"grep -H . {_IB}/ports/*/state {_IB}/ports/*/rate {_IB}/ports/*/link_layer",
        "state, speed and kind of RDMA ports",
    ),
    "ib_net": Question(f"ls -d {_IB}/device/net/*", "network interfaces of RDMA devices"),
    "speeds": Question("grep -H . /sys/class/net/*/speed", "speed of network interfaces"),
    "numa": Question("grep -H . /sys/devices/system/node/node*/cpulist", "NUMA nodes"),
    "sockets": Question(
        "sort -u /sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id", "CPU sockets"
    ),
    "virtual": Question(
        "if grep -qw hypervisor /proc/cpuinfo; then echo virtual; else echo physical; fi; "
        "cat /sys/class/dmi/id/sys_vendor /sys/class/dmi/id/product_name",
        "whether PCI topology is a hypervisor's",
    ),
    "iommu": Question("echo iommus: $(ls /sys/class/iommu); cat /proc/cmdline", "IOMMU in use"),
    "acs": Question("lspci -vvv | grep ACSCtl:", "access control of PCI bridges; only with root"),
    "topo_files": Question(f"ls -d {_FILES}", "files for NCCL_TOPO_FILE"),
    "route": Question("ip -4 -o route get {peer}", "the interface that leads to other nodes"),
    "settings": Question(
        "env | grep -E '^(NCCL|GLOO)_'; cat /etc/nccl.conf \"${NCCL_CONF_FILE:-$HOME/.nccl.conf}\"",
        "NCCL's settings that a session inherits",
    ),
}
"""By the name of the answer. Only `topo_m` is needed; without another, less is known."""
