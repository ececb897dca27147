"""Parse the answers of a node as its topology."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from msgspec.structs import replace

from dslaunch.notes import Note, note
from dslaunch.topology import host_info, inventory, matrix
from dslaunch.topology.model import Gpu, MatrixFailure, Nic, Topology, nvlinks
from dslaunch.topology.notes import MatrixNote, shown
from dslaunch.topology.smi_errors import smi_error

_MINE = {
    "gpu_list": r"^GPU \d+: .+ \(UUID: ",
    "gpu_query": r"^index[ \t]*,",
    "nvlink": r"^[ \t]*Link \d+: ",
    "p2p": r"^[ \t]*GPU0[ \t]+X[ \t]+(?:OK|CNS|GNS|TNS|NS|U|DR)\b",
    "ib": r"^/sys/class/infiniband/\S+/ports/",
    "ib_net": r"^/sys/class/infiniband/\S+/device/net/",
    "speeds": r"^/sys/class/net/",
    "numa": r"/node\d+/cpulist:",
    "virtual": r"\A(?:virtual|physical)$",
    "iommu": r"^iommus:",
    "acs": r"ACSCtl:",
    "route": r"\bdev \S{1,15} [^\n]{0,99}\bsrc ",
    "settings": r"^(?:NCCL|GLOO)_\w+=",
}
"""Patterns that identify an answer in a text with several answers."""


def answers_in(text: str) -> dict[str, str]:
    """Return the answers in a recorded text, which may contain several, by name.

    Each parser uses its own lines and skips the others, so all get the whole text. `topo_m` is
    always included, also if it is an error of nvidia-smi instead of a matrix.
    """
    there = [name for name, line in _MINE.items() if re.search(line, text, re.MULTILINE)]
    return dict.fromkeys(["topo_m", *there], text)


def read(answers: Mapping[str, str]) -> Topology:
    """Parse the answers of one node, by name. Raises nothing.

    `topo_m`, `p2p`, `gpu_list`, `gpu_query` and `nvlink` are what nvidia-smi prints; `ib`,
    `ib_net`, `speeds` and `numa` are lines of sysfs as `path:text`; `virtual` is `virtual` or
    `physical` and the machine's name; `_MINE` has patterns for the others.

    A missing or damaged answer, or an error of nvidia-smi, leaves its values unknown; `notes` and
    `trouble` explain this. Equal nodes have equal values.
    """
    return _read(tuple((name, inventory.without_uuids(text)) for name, text in answers.items()))


@lru_cache(maxsize=64)
def _read(named: tuple[tuple[str, str], ...]) -> Topology:
    answers = dict(named)
    printed = answers.get("topo_m", "")
    found = matrix.parse(printed)
    host = host_info.host(answers)
    gpus = inventory.described(_gpus(found), answers)
    notes = list(found.notes)
    listed = inventory.gpu_list(answers.get("gpu_list", ""))
    if found.status == "none":
        return Topology(
            "none",
            gpus=inventory.described([Gpu(index) for index in sorted(listed)], answers),
            notes=tuple(notes),
            trouble=_trouble(printed, found),
            host=host,
        )
    if listed and found.status == "ok" and set(listed) != {gpu.index for gpu in gpus}:
        notes.append(note(MatrixNote.GPUS_DIFFER, listed=len(listed), gpus=len(gpus)))
    denied = inventory.p2p(answers.get("p2p", ""))
    whole = Topology(
        found.status,
        gpus=gpus,
        nics=host_info.with_ports(_nics(found), answers),
        links=tuple((a, b, code) for (a, b), code in found.links.items()),
        p2p=tuple((a, b, status) for (a, b), status in (denied or {}).items() if status != "OK"),
        p2p_known=denied is not None,
        era=found.era,
        notes=tuple(notes),
        host=host,
    )
    return replace(whole, notes=(*whole.notes, *_dead_links(whole)))


def _gpus(found: matrix.TopologyMatrix) -> list[Gpu]:
    labels = [name for name in found.devices if name.startswith("GPU")]
    none = matrix.Affinity()
    near = {label: found.affinity.get(label, none) for label in labels}
    return [
        Gpu(int(label[3:]), near[label].cpus, near[label].numa, near[label].memory_numa)
        for label in labels
    ]


def _nics(found: matrix.TopologyMatrix) -> tuple[Nic, ...]:
    """Return the NICs with their device names, from the legend or (old drivers) from their
    labels."""
    labels = [name for name in found.devices if not name.startswith("GPU")]
    numbered = re.compile(r"NIC[0-9]+")
    return tuple(
        Nic(label, found.nic_names.get(label) if numbered.fullmatch(label) else label)
        for label in labels
    )


def _trouble(printed: str, found: matrix.TopologyMatrix) -> MatrixFailure:
    known = smi_error(printed)
    if known.kind == "other_tool":  # its tables look like a damaged matrix
        return known
    if found.wrapped:
        hint = "record it to a file: `nvidia-smi topo -m > node1.txt`"
        message = f"the matrix cannot be parsed: {shown(found.notes)}"
        return MatrixFailure("unreadable", message, hint)
    if found.notes:
        message = f"the matrix is too damaged: {shown(found.notes)}"
        return MatrixFailure("unreadable", message, "record it again")
    return known


def _dead_links(topology: Topology) -> list[Note]:
    """Return inactive NVLinks: the matrix shows active ones only."""
    return [
        note(
            MatrixNote.NVLINKS_INACTIVE,
            gpu=gpu.label,
            active=gpu.nvlinks[0],
            links=gpu.nvlinks[1],
        )
        for gpu in topology.gpus
        if gpu.nvlinks and gpu.nvlinks[0] < gpu.nvlinks[1] and _linked(topology, gpu)
    ]


def _linked(topology: Topology, gpu: Gpu) -> bool:
    return any(nvlinks(topology.link(gpu.label, other)) for other in topology.gpu_labels)
