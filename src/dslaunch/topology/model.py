"""The values that describe how one machine is wired. Frozen; None is always "not known"."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

Status = Literal["ok", "partial", "none"]
"""`ok`: the matrix was read whole; `partial`: what is there is right, but not all; `none`: no
matrix, and `trouble` says why."""

ORDER = ("NV", "PIX", "PSB", "PXB", "PHB", "NODE", "SYS")
"""Kinds of links from near to far (legend of `nvidia-smi topo -m`; PSB is DCGM's, one switch on
the board). More NVLinks are nearer; see `distance`."""


@dataclass(frozen=True, slots=True)
class MatrixFailure:
    """Why there is no matrix."""

    kind: str
    """A word for machines: `no_answer`, `no_devices`, `driver_not_loaded`, `nvml_mismatch`,
    `nvml_unknown`, `gpu_lost`, `bad_usage`, `topo_unsupported`, `no_nvidia_smi`, `other_tool`,
    `unreadable`."""
    message: str
    """What was found: lower case, no full stop."""
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Its index counts in PCI bus order, as nvidia-smi does."""

    index: int
    cpus: str | None = None
    """The CPUs near it, as `0-31,64-95`. In a container or job only those that it may use."""
    numa: str | None = None
    """The NUMA node near it, or several as `0-1`."""
    memory_numa: int | None = None
    """The NUMA node that its own memory is, on Grace machines."""
    name: str | None = None
    memory: int | None = None
    """MiB."""
    bus: str | None = None
    driver: str | None = None
    mig: int | None = None
    """How many MIG devices it is cut into; 0: none."""
    nvlinks: tuple[int, int] | None = None
    """NVLinks that are active, and all that it has."""

    @property
    def label(self) -> str:
        """Its name in the matrix."""
        return f"GPU{self.index}"


@dataclass(frozen=True, slots=True)
class Nic:
    """One RDMA device."""

    label: str
    """Its name in the matrix: `NIC0`, or with drivers before about 450 the device's own."""
    device: str | None = None
    """The verbs device, such as `mlx5_0` or `rocep49s0`: what NCCL_IB_HCA names."""
    interfaces: tuple[str, ...] = ()
    """Its network interfaces."""
    active: bool | None = None
    """Whether a port's state is ACTIVE."""
    layer: str | None = None
    """`InfiniBand` or `Ethernet`."""
    rate: float | None = None
    """Gb/s of its fastest active port."""

    @property
    def bond(self) -> bool:
        """Whether it stands for several ports at once, as `mlx5_bond_0` does."""
        return self.device is not None and "bond" in self.device

    @property
    def shown(self) -> str:
        """What people call it."""
        return self.device or self.label


@dataclass(frozen=True, slots=True)
class HostInfo:
    """What is known of the machine around its GPUs."""

    numa_nodes: int | None = None
    """NUMA nodes that have CPUs."""
    virtual: bool | None = None
    product: str | None = None
    iommu: bool | None = None
    """Whether an IOMMU translates: there is one, and it was not told to pass through."""
    acs: int | None = None
    """PCI bridges whose access control sends traffic between devices up to the root."""
    interface: str | None = None
    """The interface that leads to the other nodes."""
    address: str | None = None
    """The address that the other nodes see it under."""
    speeds: tuple[tuple[str, int], ...] = ()
    """Mb/s by network interface."""
    settings: tuple[tuple[str, str], ...] = ()
    """NCCL's and gloo's variables that sessions on the node inherit, and those of NCCL's files."""


@dataclass(frozen=True)
class Topology:
    """One machine, as far as it is known."""

    status: Status
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    links: tuple[tuple[str, str, str], ...] = ()
    """Two labels and how they are connected; each pair once, in the order of the matrix."""
    p2p: tuple[tuple[str, str, str], ...] = ()
    """What `topo -p2p r` says of pairs that cannot read each other's memory: `CNS`, `NS`, ..."""
    p2p_known: bool = False
    """Whether `topo -p2p r` could be read."""
    era: int | None = None
    """Which of the five forms of the matrix it was, 0 oldest; see `matrix`."""
    notes: tuple[str, ...] = ()
    """What was missing, damaged or odd in the answers."""
    trouble: MatrixFailure | None = None
    host: HostInfo = field(default_factory=HostInfo)

    @cached_property
    def _by_pair(self) -> dict[tuple[str, str], str]:
        there = {(a, b): code for a, b, code in self.links}
        back = {(b, a): code for a, b, code in self.links}
        return there | back

    def link(self, a: str, b: str) -> str | None:
        """How two devices are connected: `NV12`, `PIX`, ...; None: not known."""
        return self._by_pair.get((a, b))

    @property
    def gpu_labels(self) -> tuple[str, ...]:
        """The GPUs' names in the matrix."""
        return tuple(gpu.label for gpu in self.gpus)


@lru_cache(maxsize=256)
def nvlinks(code: str | None) -> int:
    """How many NVLinks a link bonds; 0 for PCIe."""
    found = re.fullmatch(r"NV([0-9]{1,4})", code or "")
    return int(found[1]) if found else 0


@lru_cache(maxsize=256)
def distance(code: str) -> tuple[int, int]:
    """Order links from near to far, for `min` and `max`."""
    count = nvlinks(code)
    return ORDER.index("NV" if count else code), -count
