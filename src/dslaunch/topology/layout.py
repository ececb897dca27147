"""Derive NVLink islands, the nearest NICs, the best ring and a summary from the links. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

from dslaunch.plural import counted, number_range
from dslaunch.topology.model import Gpu, Nic, Topology, distance, nvlinks

MOST_SEARCHED = 12
"""Maximum number of GPUs to search rings for; with more, only the order of the GPUs is checked."""
KEPT = 64
"""Topologies whose results are kept: equal nodes have equal ones."""
DIRECT = ("PIX", "PSB", "PXB")
"""Links over which NCCL uses GPUDirect RDMA by default (NCCL 2.30, NCCL_NET_GDR_LEVEL=PXB)."""


class Near(Struct, frozen=True):
    """The nearest NICs of a GPU."""

    gpu: int
    link: str | None
    """None: no NIC, or unknown links."""
    nics: tuple[Nic, ...] = ()


class Ring(Struct, frozen=True):
    """A ring through all GPUs whose slowest link is as fast as possible."""

    order: tuple[int, ...]
    worst: str
    between: tuple[int, int]


@lru_cache(maxsize=KEPT)
def islands(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Return the GPUs that are connected by NVLink, directly or indirectly; others are alone.

    Empty if not all links between GPUs are known.
    """
    if any(topology.link(a, b) is None for a, b in _pairs(topology)):
        return ()
    rest = [gpu.index for gpu in topology.gpus]
    found = []
    while rest:
        island, reached = [], [rest[0]]
        while reached:
            here = reached.pop()
            island.append(here)
            rest.remove(here)
            reached += [g for g in rest if g not in reached and linked(topology, here, g)]
        found.append(tuple(sorted(island)))
    return tuple(found)


def linked(topology: Topology, a: int, b: int) -> int:
    """Return the number of direct NVLinks between two GPUs."""
    return nvlinks(topology.link(f"GPU{a}", f"GPU{b}"))


def usable(nics: Sequence[Nic]) -> tuple[Nic, ...]:
    """Return the NICs that ranks can use: active, not bonds, and of one kind of fabric.

    If some are InfiniBand, Ethernet ones are for storage or management.
    """
    chosen = [nic for nic in nics if not nic.bond and nic.active is not False]
    if any(nic.layer == "InfiniBand" for nic in chosen):
        chosen = [nic for nic in chosen if nic.layer != "Ethernet"]
    return tuple(chosen)


@lru_cache(maxsize=KEPT)
def nearest(topology: Topology) -> tuple[Near, ...]:
    """Return the nearest usable NICs of each GPU."""
    nics = usable(topology.nics)
    return tuple(_nearest(topology, gpu, nics) for gpu in topology.gpus)


def _nearest(topology: Topology, gpu: Gpu, nics: Sequence[Nic]) -> Near:
    links = [(nic, topology.link(gpu.label, nic.label)) for nic in nics]
    known = [(nic, link) for nic, link in links if link]
    best = min((link for _, link in known), key=distance, default=None)
    if best is None or (best != "PIX" and len(known) < len(links)):
        return Near(gpu.index, None)
    return Near(gpu.index, best, tuple(nic for nic, link in known if link == best))


def mesh(topology: Topology, gpus: Sequence[int] | None = None) -> str | None:
    """Return the NVLink of all pairs, such as `NV18`; None: pairs differ, or have no NVLink."""
    labels = [f"GPU{i}" for i in gpus] if gpus is not None else list(topology.gpu_labels)
    pairs = [(a, b) for n, a in enumerate(labels) for b in labels[n + 1 :]]
    codes = {topology.link(a, b) for a, b in pairs}
    code = codes.pop() if len(codes) == 1 else None
    return code if nvlinks(code) else None


@lru_cache(maxsize=KEPT)
def ring(topology: Topology) -> Ring | None:
    """Return the best ring through all GPUs; None: fewer than two GPUs, or unknown links."""
    gpus = [gpu.index for gpu in topology.gpus]
    links = {(a, b): topology.link(f"GPU{a}", f"GPU{b}") for a in gpus for b in gpus if a != b}
    known = {pair: link for pair, link in links.items() if link}
    if len(gpus) < 2 or len(known) < len(links):
        return None
    levels = sorted({distance(link) for link in known.values()})
    for level in levels:
        near = {pair for pair, link in known.items() if distance(link) <= level}
        order = _ring(gpus, near) if len(gpus) <= MOST_SEARCHED else _in_order(gpus, near)
        if order:
            hops = [*zip(order, (*order[1:], order[0]), strict=True)]
            worst = max(hops, key=lambda hop: distance(known[hop]))
            return Ring(order, known[worst], worst)
    return None


def _in_order(gpus: list[int], near: set[tuple[int, int]]) -> tuple[int, ...]:
    hops = zip(gpus, (*gpus[1:], gpus[0]), strict=True)
    return tuple(gpus) if all(hop in near for hop in hops) else ()


def _ring(gpus: list[int], near: set[tuple[int, int]]) -> tuple[int, ...]:
    """Find a ring over near links; of all paths over a set of GPUs, keep one for each end."""
    start, others = gpus[0], gpus[1:]
    paths: dict[tuple[frozenset[int], int], tuple[int, ...]] = {(frozenset(), start): (start,)}
    for _ in others:
        longer: dict[tuple[frozenset[int], int], tuple[int, ...]] = {}
        for (seen, end), path in paths.items():
            for g in others:
                if g not in seen and (end, g) in near:
                    longer.setdefault((seen | {g}, g), (*path, g))
        paths = longer
    closed = (path for (_, end), path in paths.items() if (end, start) in near)
    return next(closed, ())


def shown_islands(topology: Topology) -> str:
    """Return the NVLink islands as text, `0-3 4-7`; `-` if no GPU has NVLink, or it is unknown."""
    joined = [island for island in islands(topology) if len(island) > 1]
    return " ".join(number_range(island) for island in joined) or "-"


def placement(topology: Topology) -> str | None:
    """Return the placement of the GPUs as text: NUMA nodes if known, otherwise sets of CPUs."""
    for what, near in (
        ("NUMA node", {gpu.numa for gpu in topology.gpus}),
        ("set", {gpu.cpus for gpu in topology.gpus}),
    ):
        if near and None not in near and (len(near) > 1 or what != "set"):
            return counted(len(near), what) + (" of CPUs" if what == "set" else "")
    return None


def model(name: str) -> str:
    """Return a GPU's name without vendor and type of memory, such as `H100 80GB` or `L40S`."""
    short = re.sub(r"^(?:NVIDIA|Tesla|NVIDIA Tesla)\s+", "", name)
    return re.sub(r"(?<!\s)\s+HBM\d\w*$", "", short)


def models(topology: Topology) -> str:
    """Return the GPU models with their counts: `8x H100 80GB`, `1x T1000 + 1x V100`."""
    names = Counter(_model(gpu) for gpu in topology.gpus)
    return " + ".join(f"{times}x {name}" for name, times in names.items()) or "no GPU"


def _model(gpu: Gpu) -> str:
    if gpu.name is None:
        return "GPU"
    name = model(gpu.name)
    with_memory = gpu.memory is None or re.search(r"\d\s?GB\b", name)
    return name if with_memory else f"{name} {round((gpu.memory or 0) / 1024)}GiB"


@lru_cache(maxsize=KEPT)
def summary(topology: Topology) -> str:
    """Return a summary of a machine: `8x H100 80GB, NV18 full mesh, GPU-NIC PIX 8/8`."""
    if topology.status == "none":
        trouble = topology.trouble
        return f"unknown: {trouble.message}" if trouble else "unknown"
    parts = [models(topology), _gpu_links(topology), _nic_links(topology), placement(topology)]
    if topology.status == "partial":
        parts.append("incomplete")
    return ", ".join(part for part in parts if part)


def _gpu_links(topology: Topology) -> str | None:
    if len(topology.gpus) < 2:
        return None
    if code := mesh(topology):
        return f"{code} full mesh" if len(topology.gpus) > 2 else f"{code} bridge"
    links = [topology.link(a, b) for a, b in _pairs(topology)]
    if None in links:
        return f"{'/'.join(sorted({link for link in links if link}, key=distance))} where known"
    joined = [island for island in islands(topology) if len(island) > 1]
    others = Counter(link for link in links if link and not nvlinks(link))
    far = "/".join(sorted(others, key=distance))
    if not joined:
        return f"{far} between GPUs, no NVLink" if far else None
    if len(joined) == 1 and len(joined[0]) == len(topology.gpus):
        return f"NVLink mesh, {far} elsewhere" if far else "uneven NVLink mesh"
    codes = {mesh(topology, island) for island in joined}
    code = codes.pop() if len(codes) == 1 else None
    sizes = "+".join(str(len(island)) for island in islands(topology))
    return f"{code or 'NVLink'} islands {sizes}" + (f", {far} between" if far else "")


def _pairs(topology: Topology) -> list[tuple[str, str]]:
    labels = topology.gpu_labels
    return [(a, b) for n, a in enumerate(labels) for b in labels[n + 1 :]]


def _nic_links(topology: Topology) -> str | None:
    near = nearest(topology)
    codes = Counter(each.link for each in near if each.link)
    if not codes:
        return "no RDMA NIC" if topology.status == "ok" and not topology.nics else None
    words = [f"{code} {codes[code]}/{len(near)}" for code in sorted(codes, key=distance)]
    return f"GPU-NIC {' '.join(words)}"
