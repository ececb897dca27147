"""The values that describe the topology of one machine. Frozen; None always means unknown."""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from typing import Literal

from msgspec import Struct, field

from dslaunch.notes import Note

Status = Literal["ok", "partial", "none"]
"""`ok`: the matrix is complete; `partial`: it is valid, but not complete; `none`: no matrix, and
`trouble` has the reason."""

ORDER = ("NV", "PIX", "PSB", "PXB", "PHB", "NODE", "SYS")
"""Kinds of links from near to far (legend of `nvidia-smi topo -m`; PSB, one switch on the board, is
DCGM's). More NVLinks are nearer; see `distance`."""


class MatrixFailure(Struct, frozen=True):
    """The reason for a missing matrix."""

    kind: str
    """Code of the reason: `no_answer`, `no_devices`, `driver_not_loaded`, `nvml_mismatch`,
    `nvml_unknown`, `gpu_lost`, `bad_usage`, `topo_unsupported`, `no_nvidia_smi`, `other_tool`,
    `unreadable`."""
    message: str
    """Text of the reason: lower case, no full stop."""
    hint: str | None = None


class Gpu(Struct, frozen=True):
    """One GPU. Its index is in PCI bus order, as in nvidia-smi."""

    index: int
    cpus: str | None = None
    """CPUs near it, `0-31,64-95`; in a container or job only the allowed ones."""
    numa: str | None = None
    """NUMA node near it, or several: `0-1`."""
    memory_numa: int | None = None
    """NUMA node of its memory, on Grace machines."""
    name: str | None = None
    memory: int | None = None
    """MiB."""
    bus: str | None = None
    driver: str | None = None
    mig: int | None = None
    """Number of its MIG devices; 0: none."""
    nvlinks: tuple[int, int] | None = None
    """Number of active NVLinks, and of all NVLinks."""

    @property
    def label(self) -> str:
        """Return its name in the matrix."""
        return f"GPU{self.index}"


class Nic(Struct, frozen=True):
    """One RDMA device."""

    label: str
    """Name in the matrix: `NIC0`; with drivers before about 450 the name of the device."""
    device: str | None = None
    """Name of the verbs device for NCCL_IB_HCA, such as `mlx5_0` or `rocep49s0`."""
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
        """Return whether it is a bond of several ports, such as `mlx5_bond_0`."""
        return self.device is not None and "bond" in self.device

    @property
    def shown(self) -> str:
        """Return its name for users."""
        return self.device or self.label


class HostInfo(Struct, frozen=True):
    """Facts about the machine besides its GPUs."""

    numa_nodes: int | None = None
    """Number of NUMA nodes with CPUs."""
    virtual: bool | None = None
    product: str | None = None
    iommu: bool | None = None
    """Whether an IOMMU translates addresses: present, and not in pass-through mode."""
    acs: int | None = None
    """Number of PCI bridges whose access control (ACS) routes P2P through the root complex."""
    interface: str | None = None
    """The interface of the route to the other nodes."""
    address: str | None = None
    """Its address on that route."""
    speeds: tuple[tuple[str, int], ...] = ()
    """Mb/s by network interface."""
    settings: tuple[tuple[str, str], ...] = ()
    """NCCL's and gloo's variables in sessions on the node, and in NCCL's config files."""


class Topology(Struct, frozen=True, dict=True):
    """The topology of one machine."""

    status: Status
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    links: tuple[tuple[str, str, str], ...] = ()
    """Two labels and their link; each pair once, in the order of the matrix."""
    p2p: tuple[tuple[str, str, str], ...] = ()
    """Pairs without peer access in `topo -p2p r`, with the reason: `CNS`, `NS`, ..."""
    p2p_known: bool = False
    """Whether `topo -p2p r` could be parsed."""
    era: int | None = None
    """Form of the matrix, 0 to 4, oldest first; see `matrix`."""
    notes: tuple[Note, ...] = ()
    """Notes about missing, damaged or unexpected parts of the answers."""
    trouble: MatrixFailure | None = None
    host: HostInfo = field(default_factory=HostInfo)

    @cached_property
    def _hash(self) -> int:
        return hash((self.status, self.gpus, self.nics, self.links, self.notes, self.host))

    def __hash__(self) -> int:
        """Return a hash, computed once: nodes are grouped by topology, and most share an object."""
        return self._hash

    @cached_property
    def _by_pair(self) -> dict[tuple[str, str], str]:
        there = {(a, b): code for a, b, code in self.links}
        back = {(b, a): code for a, b, code in self.links}
        return there | back

    def link(self, a: str, b: str) -> str | None:
        """Return the link of two devices: `NV12`, `PIX`, ...; None: unknown."""
        return self._by_pair.get((a, b))

    @property
    def gpu_labels(self) -> tuple[str, ...]:
        """Return the names of the GPUs in the matrix."""
        return tuple(gpu.label for gpu in self.gpus)


@lru_cache(maxsize=256)
def nvlinks(code: str | None) -> int:
    """Return the number of NVLinks of a link; 0 for PCIe."""
    found = re.fullmatch(r"NV([0-9]{1,4})", code or "")
    return int(found[1]) if found else 0


@lru_cache(maxsize=256)
def distance(code: str) -> tuple[int, int]:
    """Return a sort key of links, from near to far."""
    count = nvlinks(code)
    return ORDER.index("NV" if count else code), -count
