"""Advice as codes with parameters, and the text and source of each code. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from dslaunch.texts import parameter_names

Where = Literal["env", "interface", "slots", ""]
"""The part of a cluster file: a node's `env`, `network.interface`, nodes' `slots`, or nothing."""
Value = str | int | float
FIXED_P2P = (550, 40, 7)
"""The first driver that reports that GeForce RTX 40 GPUs have no P2P, as in accelerate's check of
RTX 4000 GPUs."""


class AdviceCode(StrEnum):
    """The reason for an advice."""

    ROUTE_NOT_PHYSICAL = "route-not-physical"
    INTERFACE_COMMON = "interface-common"
    INTERFACE_DIFFERS = "interface-differs"
    DEVICES_EXCLUDED = "devices-excluded"
    DEVICES_ALL = "devices-all"
    PAIRS_BY_NVLINK = "pairs-by-nvlink"
    PAIRS_BY_NVLINK_ONLY = "pairs-by-nvlink-only"
    RANKS_ON_ISLANDS = "ranks-on-islands"
    P2P_HANGS = "p2p-hangs"
    P2P_MISSING = "p2p-missing"
    P2P_DENIED = "p2p-denied"
    NIC_FAR = "nic-far"
    NIC_AT_OTHER_CPU = "nic-at-other-cpu"
    NIC_OVER_C2C = "nic-over-c2c"
    PAIRS_BY_PCIE = "pairs-by-pcie"
    P2P_LEVEL = "p2p-level"
    ACS_ENABLED = "acs-enabled"
    IOMMU_ENABLED = "iommu-enabled"
    TOPOLOGY_MAYBE_VIRTUAL = "topology-maybe-virtual"
    TOPOLOGY_VIRTUAL = "topology-virtual"
    MODELS_DIFFER = "models-differ"
    NETWORK_SLOW = "network-slow"
    SLOTS_WITHOUT_GPU = "slots-without-gpu"


class Advice(Struct, frozen=True):
    """One setting or action."""

    what: str
    """A variable, a setting or a subject: `NCCL_IB_HCA`, `network.interface`, `ZeRO stage`."""
    value: str | None
    """The value to set; None: information or an action, not a setting."""
    code: AdviceCode
    values: tuple[tuple[str, Value], ...] = ()
    """The parameters of the code."""
    hosts: tuple[str, ...] = ()
    where: Where = ""

    @property
    def reason(self) -> str:
        """Return the reason as text."""
        return _ROWS[self.code][0].format(**dict(self.values))

    @property
    def source(self) -> str:
        """Return the source of the rule."""
        return _ROWS[self.code][1]


def advice(
    code: AdviceCode,
    what: str,
    value: str | None = None,
    *,
    where: Where = "",
    hosts: tuple[str, ...] = (),
    **values: Value,
) -> Advice:
    """Return advice with the parameters of its code."""
    return Advice(what, value, code, tuple(values.items()), hosts, where)


def parameters(code: AdviceCode) -> tuple[str, ...]:
    """Return the names of a code's parameters, in the order of its text."""
    return parameter_names(_ROWS[code][0])


_BRIDGE = "NVIDIA/nccl-tests#178: two bridged A100-PCIe 208 GB/s, three 20 GB/s"
_HCA = "NCCL documentation, NCCL_IB_HCA"
_IFNAME = "NCCL documentation, NCCL_SOCKET_IFNAME; PyTorch, GLOO_SOCKET_IFNAME"
_GDR = "NCCL 2.30, NCCL_NET_GDR_LEVEL: PXB by default"
_P2P = "NVIDIA/nccl-tests#287; NCCL 2.30, src/graph/paths.cc: P2P up to PXB by default"
_RTX40 = "accelerate, check_cuda_p2p_ib_support; tinygrad/open-gpu-kernel-modules#45"
_ACS = "NVIDIA/nccl#667; NCCL documentation, Troubleshooting, PCI Access Control Services"
_CLOUD = "NVIDIA/nccl#1298; NCCL documentation, NCCL_TOPO_FILE"
_C2C = "NCCL 2.30, src/graph/paths.cc: NCCL_NET_GDR_C2C, 1 by default since 2.27"
_LEVEL = "NCCL documentation, NCCL_P2P_LEVEL; NCCL 2.30, src/graph/paths.cc"
_ZERO = "DeepSpeed, ZeRO++ (zero_hpz_partition_size): weights gathered inside a node"
_ORDER = "CUDA documentation, CUDA_DEVICE_ORDER: FASTEST_FIRST by default"
_EXACT = "`=` matches exactly: mlx5_1 without it also matches mlx5_10"

_ROWS: dict[AdviceCode, tuple[str, str]] = {
    AdviceCode.ROUTE_NOT_PHYSICAL: (
        "the route to the other nodes uses {interface}, which is not a network between machines",
        _IFNAME,
    ),
    AdviceCode.INTERFACE_COMMON: (
        "all nodes reach the others through {interface}; without the setting each library "
        "chooses an interface",
        _IFNAME,
    ),
    AdviceCode.INTERFACE_DIFFERS: (
        "the route to the other nodes uses {interface}; the names differ between nodes",
        _IFNAME,
    ),
    AdviceCode.DEVICES_EXCLUDED: ("excludes {excluded}; " + _EXACT, _HCA),
    AdviceCode.DEVICES_ALL: ("all devices; on other nodes some are excluded; " + _EXACT, _HCA),
    AdviceCode.PAIRS_BY_NVLINK: (
        "these pairs have the most NVLinks; a ring through all GPUs uses {worst}",
        _BRIDGE,
    ),
    AdviceCode.PAIRS_BY_NVLINK_ONLY: ("these pairs have the most NVLinks", _BRIDGE),
    AdviceCode.RANKS_ON_ISLANDS: ("keeps neighboring ranks on one NVLink island", _BRIDGE),
    AdviceCode.P2P_HANGS: (
        "RTX 40 GPUs have no P2P, and driver {driver} does not report it: NCCL hangs",
        _RTX40,
    ),
    AdviceCode.P2P_MISSING: (
        "RTX 40 GPUs have no P2P: NCCL copies through host memory. Only drivers before "
        + ".".join(f"{part:02}" for part in FIXED_P2P)
        + " need NCCL_P2P_DISABLE=1, since they hang",
        _RTX40,
    ),
    AdviceCode.P2P_DENIED: (
        "{pairs} pairs of GPUs have no peer access ({statuses}); NCCL copies through host "
        "memory, no setting is needed",
        _P2P,
    ),
    AdviceCode.NIC_FAR: (
        "{far} of {gpus} GPUs have no NIC nearer than {links}: their traffic is copied through "
        "host memory",
        _GDR,
    ),
    AdviceCode.NIC_AT_OTHER_CPU: (
        "{far} of {gpus} GPUs have their nearest NIC at another CPU: their traffic is copied "
        "through host memory",
        _C2C,
    ),
    AdviceCode.NIC_OVER_C2C: (
        "the NICs are at the GPUs' own CPUs, linked by NVLink-C2C: NCCL 2.27 and later use "
        "GPUDirect RDMA (NCCL_NET_GDR_C2C=1 is the default); older versions copy through host "
        "memory",
        _C2C,
    ),
    AdviceCode.PAIRS_BY_PCIE: (
        "these pairs are below one PCIe switch; others are connected over {links}",
        _P2P,
    ),
    AdviceCode.P2P_LEVEL: (
        "{far} of {pairs} pairs of GPUs are connected over {links}. NCCL uses P2P up to PXB only "
        "(up to SYS with at most 2 GPUs on AMD CPUs), and otherwise copies through host memory. "
        "If `nvidia-smi topo -p2p r` reports OK, measure with NCCL_P2P_LEVEL={level}; it hangs "
        "if an IOMMU or ACS redirects P2P",
        _LEVEL,
    ),
    AdviceCode.ACS_ENABLED: (
        "ACS is enabled on {bridges} PCIe bridges: P2P between GPUs behind one switch is routed "
        "through the root complex, or hangs; disable it in the BIOS or with setpci",
        _ACS,
    ),
    AdviceCode.IOMMU_ENABLED: (
        "an IOMMU is enabled, and GPUs are behind one PCIe switch: if NCCL hangs or is slow, boot "
        "with iommu=pt and look for `SrcValid+` in `sudo lspci -vvv`",
        _ACS,
    ),
    AdviceCode.TOPOLOGY_MAYBE_VIRTUAL: (
        "all links are equal and all GPUs are near the same CPUs: if this is a virtual machine, "
        "its PCIe topology is not the real one; set NCCL_TOPO_FILE to the provider's file",
        _CLOUD,
    ),
    AdviceCode.TOPOLOGY_VIRTUAL: (
        "the virtual machine shows no PCIe switches, and NCCL treats every NIC as distant; the "
        "provider's images have the file with the real topology",
        _CLOUD,
    ),
    AdviceCode.MODELS_DIFFER: (
        "the GPU models differ, and CUDA numbers the fastest first, unlike nvidia-smi",
        _ORDER,
    ),
    AdviceCode.NETWORK_SLOW: (
        "{gigabits:g} Gb/s per node: stage 3 gathers every layer's weights over the network in "
        "each step; below {enough} Gb/s use stage 2 if it fits, or gather inside nodes",
        _ZERO,
    ),
    AdviceCode.SLOTS_WITHOUT_GPU: (
        "slots {slots} have no GPU: nvidia-smi reports {gpus} GPUs",
        "nvidia-smi topo -m",
    ),
}
