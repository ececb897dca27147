"""The known hardware of the nodes of a run; None: unknown. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.recorded import checked, parsed

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation

NO_BF16 = r"V100|T4|P100|P40|P4|GTX \d+|TITAN (?:V|XP|RTX)|RTX 20\d\d|QUADRO RTX \d+"
"""Names of GPUs before Ampere (compute capability 8.0), without bf16."""
BY_PCIE = r"T4|3090|4090|A10|A10G|A40|L4|L40|L40S|RTX A\d+"
"""GPUs that are connected over PCIe, although some support an NVLink bridge between two."""
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class DirectoryFacts(Struct, frozen=True):
    """A directory on one node."""

    path: str
    exists: bool | None = None
    filesystem: str | None = None
    """Name of the file system in the kernel: ext4, xfs, tmpfs, nfs4."""
    shared: bool | None = None
    """Whether other nodes share it."""
    direct: bool | None = None
    """Whether files can be opened with O_DIRECT."""


class NodeHardware(Struct, frozen=True):
    """One node."""

    host: str
    slots: int
    """Number of GPUs that the run uses."""
    gpus: int | None = None
    """Number of GPUs of the node."""
    gpu: str | None = None
    """Their model, from nvidia-smi or a label in the cluster file: V100, A100."""
    gpu_memory: int | None = None
    """Memory of the smallest GPU in bytes."""
    nvlink: bool | None = None
    """Whether the GPUs are connected by NVLink."""
    memory: int | None = None
    """CPU memory in bytes."""
    directories: tuple[DirectoryFacts, ...] = ()

    def directory(self, path: str) -> DirectoryFacts | None:
        """Return the facts of a directory, otherwise of its nearest known parent."""
        wanted = posixpath.normpath(path)
        around = [d for d in self.directories if _is_below(wanted, posixpath.normpath(d.path))]
        return max(around, key=lambda d: len(posixpath.normpath(d.path)), default=None)


def _is_below(path: str, other: str) -> bool:
    return path == other or path.startswith(other.rstrip("/") + "/")


def hardware_of(allocation: Allocation) -> tuple[NodeHardware, ...]:
    """Return the hardware in the cluster file: slots, and the labels `gpu` (a model) and `memory`
    (such as 512G)."""
    return tuple(
        NodeHardware(
            placement.node.host,
            len(placement.slots),
            gpu=(labels := dict(placement.node.labels)).get("gpu"),
            memory=_size(labels),
        )
        for placement in allocation.placements
    )


def _size(labels: Mapping[str, str]) -> int | None:
    found = re.fullmatch(r"(\d{1,18})\s*([KMGT]?)i?B?", labels.get("memory", ""))
    return int(found[1]) * _UNITS[found[2]] if found else None


def facts_from_json(text: str) -> tuple[NodeHardware, ...]:
    """Parse recorded hardware. Raises InvalidValue."""
    return checked(tuple[NodeHardware, ...], parsed(text))


def is_one_of(gpu: str | None, names: str) -> bool:
    """Return whether a GPU's name contains one of these names as whole words."""
    words = re.sub(r"[-_/]", " ", gpu or "").upper()
    return bool(re.search(rf"\b(?:{names})\b", words))
