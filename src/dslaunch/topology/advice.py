"""What to set for the machines at hand: each with its reason and whoever says so.

Advice is never applied by itself. What could be written into a cluster file says where.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from dslaunch.plural import counted
from dslaunch.topology.layout import DIRECT, Near, islands, linked, mesh, nearest, ring, usable
from dslaunch.topology.model import Gpu, Topology, distance, nvlinks

Where = Literal["env", "interface", "slots", ""]
"""What of a cluster file it is: a node's `env`, `network.interface`, nodes' `slots`, or nothing."""

ENOUGH = 100
"""Gb/s between nodes below which ZeRO-3's gathering of weights holds up the GPUs."""
FIXED_P2P = (550, 40, 7)
"""The first driver with which GeForce RTX 40 cards tell that they have no P2P, as accelerate's
check of RTX 4000 cards has it."""
SOURCES = {
    "bridge": "NVIDIA/nccl-tests#178: two bridged A100-PCIe 208 GB/s, three 20 GB/s",
    "hca": "NCCL documentation, NCCL_IB_HCA",
    "ifname": "NCCL documentation, NCCL_SOCKET_IFNAME; PyTorch, GLOO_SOCKET_IFNAME",
    "gdr": "NCCL 2.30, NCCL_NET_GDR_LEVEL: PXB by default",
    "p2p": "NVIDIA/nccl-tests#287; NCCL 2.30, src/graph/paths.cc: P2P up to PXB by default",
    "rtx40": "accelerate, check_cuda_p2p_ib_support; tinygrad/open-gpu-kernel-modules#45",
    "acs": "NVIDIA/nccl#667; NCCL documentation, Troubleshooting, PCI Access Control Services",
    "cloud": "NVIDIA/nccl#1298; NCCL documentation, NCCL_TOPO_FILE",
    "c2c": "NCCL 2.30, src/graph/paths.cc: NCCL_NET_GDR_C2C, 1 by default since 2.27",
    "level": "NCCL documentation, NCCL_P2P_LEVEL; NCCL 2.30, src/graph/paths.cc",
    "zero": "DeepSpeed, ZeRO++ (zero_hpz_partition_size): weights gathered inside a node",
    "order": "CUDA documentation, CUDA_DEVICE_ORDER: FASTEST_FIRST by default",
}
_ODD_INTERFACE = re.compile(r"lo|docker|virbr|veth|br-|tun|tap|wl|cni|flannel|cali")


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to set or to do."""

    what: str
    """A variable, a setting or a matter: `NCCL_IB_HCA`, `network.interface`, `ZeRO stage`."""
    value: str | None
    """What to set it to; None: there is something to know or to do, not to set."""
    reason: str
    source: str
    hosts: tuple[str, ...] = ()
    where: Where = ""


_Adviser = Callable[[Topology], Iterable[Advice]]


def advise(by_host: Mapping[str, Topology]) -> tuple[Advice, ...]:
    """Give advice for nodes that work together; equal advice is given once for all of them."""
    read = {host: t for host, t in by_host.items() if t.status == "ok" and t.gpus}
    found: dict[Advice, list[str]] = {}
    for host, topology in read.items():
        for adviser in _FOR_ONE:
            for said in adviser(topology):
                found.setdefault(said, []).append(host)
    alone = [replace(said, hosts=tuple(hosts)) for said, hosts in found.items()]
    return (*_interfaces(by_host), *_hcas(read), *alone, *_zero(read))


def _interfaces(by_host: Mapping[str, Topology]) -> Iterable[Advice]:
    """The interface that leads to the others: for the file if it is one name, else per node."""
    by_name: dict[str, list[str]] = {}
    for host, topology in by_host.items():
        if topology.host.interface:
            by_name.setdefault(topology.host.interface, []).append(host)
    source = SOURCES["ifname"]
    for name, having in by_name.items():
        hosts = tuple(having)
        if _ODD_INTERFACE.match(name):
            why = f"the way to the other nodes is {name}, which is no network between machines"
            yield Advice("routes", None, why, source, hosts=hosts)
        elif len(by_name) == 1:
            why = f"all nodes reach the others through {name}; else each library guesses"
            yield Advice(
                "network.interface",
                name,
                why,
                source,
                hosts=hosts,
                where="interface",
            )
        else:
            why = f"here the way to the other nodes is {name}; names differ from node to node"
            for variable, value in (
                ("NCCL_SOCKET_IFNAME", f"={name}"),
                ("GLOO_SOCKET_IFNAME", name),
            ):
                yield Advice(variable, value, why, source, hosts=hosts, where="env")


def _hcas(read: Mapping[str, Topology]) -> Iterable[Advice]:
    """NCCL_IB_HCA where NCCL would take devices that ranks should not talk over."""
    wanted = {host: chosen for host, t in read.items() if (chosen := _devices(t))}
    excluded = {host: _excluded(read[host], chosen) for host, chosen in wanted.items()}
    if not any(excluded.values()):
        return
    groups: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for host, chosen in wanted.items():
        groups.setdefault((chosen, excluded[host]), []).append(host)
    for (chosen, without), hosts in groups.items():
        why = f"leaves out {without}" if without else "all of them; other nodes leave some out"
        value = "=" + ",".join(chosen)
        why = f"{why}; `=` since mlx5_1 alone would take mlx5_10 too"
        yield Advice("NCCL_IB_HCA", value, why, SOURCES["hca"], hosts=tuple(hosts), where="env")


def _devices(topology: Topology) -> tuple[str, ...] | None:
    """The devices for ranks; None: some name is not known, or there is nothing to choose."""
    if topology.status != "ok" or not topology.nics:
        return None
    if any(nic.device is None for nic in topology.nics):
        return None
    chosen = list(usable(topology.nics))
    near = nearest(topology)
    if near and all(each.link in DIRECT for each in near):
        by_gpu = {nic.label for each in near for nic in each.nics}
        reached = [n for n in chosen if n.label in by_gpu or _direct(topology, n.label)]
        chosen = reached or chosen
    return tuple(nic.device for nic in chosen if nic.device) or None


def _direct(topology: Topology, nic: str) -> bool:
    return any(topology.link(gpu, nic) in DIRECT for gpu in topology.gpu_labels)


def _excluded(topology: Topology, chosen: tuple[str, ...]) -> str:
    """Say which devices are left out, and why."""
    words = []
    for nic in topology.nics:
        if nic.device is None or nic.device in chosen:
            continue
        if nic.bond:
            why = "a bond"
        elif nic.active is False:
            why = "down"
        elif nic.layer == "Ethernet" and nic not in usable(topology.nics):
            why = "Ethernet beside InfiniBand"
        else:
            why = "far from every GPU"
        words.append(f"{nic.device} ({why})")
    return ", ".join(words)


def _pairs(topology: Topology) -> Iterable[Advice]:
    """Slots for jobs that need only two GPUs, where not every pair is as good."""
    if mesh(topology) or len(topology.gpus) < 3:
        return
    best = _matched(topology)
    if not best:
        return
    value = " or ".join(f"{a},{b}" for a, b in best)
    worst = ring(topology)
    far = worst is not None and not nvlinks(worst.worst)
    between = f"; a ring through all GPUs goes over {worst.worst}" if worst and far else ""
    why = f"these pairs have the most NVLinks between them{between}"
    yield Advice("slots of a two-GPU job", value, why, SOURCES["bridge"])
    order = [gpu for island in islands(topology) for gpu in island]
    if order != sorted(order):
        why = "keeps neighbouring ranks on one NVLink island"
        yield Advice("CUDA_VISIBLE_DEVICES", ",".join(map(str, order)), why, SOURCES["bridge"])


def _matched(topology: Topology) -> list[tuple[int, int]]:
    """Disjoint pairs with the most NVLinks first."""
    gpus = [gpu.index for gpu in topology.gpus]
    pairs = [(a, b) for a in gpus for b in gpus if a < b and linked(topology, a, b)]
    best: list[tuple[int, int]] = []
    for a, b in sorted(pairs, key=lambda pair: (-linked(topology, *pair), pair)):
        if not {a, b} & {gpu for pair in best for gpu in pair}:
            best.append((a, b))
    return sorted(best)


def _peer_access(topology: Topology) -> Iterable[Advice]:
    old = [gpu for gpu in topology.gpus if _silent_about_p2p(gpu)]
    if old and len(topology.gpus) > 1:
        why = f"RTX 40 cards have no P2P, and driver {old[0].driver} does not say so: NCCL hangs"
        yield Advice("NCCL_P2P_DISABLE", "1", why, SOURCES["rtx40"], where="env")
    elif not topology.p2p_known and len(topology.gpus) > 1 and all(map(_rtx40, topology.gpus)):
        why = (
            "RTX 40 cards have no P2P: NCCL copies through the host's memory. Nothing needs to be "
            "set, but with drivers before 550.40.07, which hang: NCCL_P2P_DISABLE=1"
        )
        yield Advice("P2P", None, why, SOURCES["rtx40"])
    elif topology.p2p:
        words = sorted({status for *_, status in topology.p2p})
        why = (
            f"pairs of GPUs that cannot read each other's memory: {len(topology.p2p)} "
            f"({', '.join(words)}); NCCL copies through the host's, nothing needs to be set"
        )
        yield Advice("P2P", None, why, SOURCES["p2p"])


def _rtx40(gpu: Gpu) -> bool:
    return re.search(r"RTX 40\d\d", gpu.name or "") is not None


def _silent_about_p2p(gpu: Gpu) -> bool:
    version = tuple(int(part) for part in re.findall(r"[0-9]{1,9}", gpu.driver or ""))
    return _rtx40(gpu) and bool(version) and version < FIXED_P2P


def _direct_memory(topology: Topology) -> Iterable[Advice]:
    """NICs that are too far from GPUs to read their memory, unless that is a hypervisor's tale."""
    far = [near for near in nearest(topology) if near.link and near.link not in DIRECT]
    if not far or topology.host.virtual:
        return
    if _coherent(topology):
        yield from _over_c2c(far)
        return
    codes = "/".join(sorted({near.link for near in far if near.link}, key=distance))
    why = (
        f"{len(far)} of {len(topology.gpus)} GPUs have no NIC nearer than {codes}: what they send "
        "goes through the host's memory"
    )
    yield Advice("GPUDirect RDMA", None, why, SOURCES["gdr"])


def _coherent(topology: Topology) -> bool:
    """Whether GPUs are linked to their CPUs by NVLink-C2C: their memory is a NUMA node there."""
    named = any(re.search(r"\bG(?:H|B)(?:10|200|300)\b", gpu.name or "") for gpu in topology.gpus)
    return named or any(gpu.memory_numa is not None for gpu in topology.gpus)


def _over_c2c(far: list[Near]) -> Iterable[Advice]:
    """NICs at the GPU's own CPU reach its memory over C2C; those behind another CPU do not."""
    other = [near for near in far if near.link == "SYS"]
    if other:
        why = (
            f"the nearest NIC of {counted(len(other), 'GPU')} is at another CPU: what they send "
            "goes through the host's memory"
        )
        yield Advice("GPUDirect RDMA", None, why, SOURCES["c2c"])
    else:
        why = (
            "the NICs are at the GPUs' own CPUs, and NVLink-C2C joins these: NCCL 2.27 and later "
            "use GPUDirect there (NCCL_NET_GDR_C2C=1 is the default); older ones copy through the "
            "host's memory"
        )
        yield Advice("GPUDirect RDMA", None, why, SOURCES["c2c"])


def _over_pcie(topology: Topology) -> Iterable[Advice]:
    """What machines without NVLink should know: which pairs are near, and how far P2P goes."""
    gpus = topology.gpu_labels
    pairs = [(a, b) for n, a in enumerate(gpus) for b in gpus[n + 1 :]]
    links = {pair: topology.link(*pair) for pair in pairs}
    if len(gpus) < 2 or None in links.values() or any(map(nvlinks, links.values())):
        return
    if topology.host.virtual or topology.p2p or any(map(_rtx40, topology.gpus)):
        return
    near = [pair for pair, link in links.items() if link in DIRECT]
    far = sorted({link for link in links.values() if link and link not in DIRECT}, key=distance)
    if near and far:
        value = " or ".join(f"{a[3:]},{b[3:]}" for a, b in _apart(near))
        why = f"these pairs are below one PCI switch; others go over {'/'.join(far)}"
        yield Advice("slots of a two-GPU job", value, why, SOURCES["p2p"])
    if far:
        level = "SYS" if "SYS" in far else "PHB"
        codes = "/".join(far)
        why = (
            f"{len(links) - len(near)} of {counted(len(links), 'pair')} of GPUs are connected "
            f"over {codes}. NCCL uses P2P up to PXB only (up to SYS with at most 2 GPUs on AMD "
            "CPUs), and else copies through the host's memory. Where `nvidia-smi topo -p2p r` "
            f"says OK, measure with NCCL_P2P_LEVEL={level}; it hangs where an IOMMU or ACS "
            "redirects P2P"
        )
        yield Advice("NCCL_P2P_LEVEL", None, why, SOURCES["level"])


def _apart(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs of which no two share a GPU, the first ones first."""
    chosen: list[tuple[str, str]] = []
    for pair in pairs:
        if not {*pair} & {gpu for each in chosen for gpu in each}:
            chosen.append(pair)
    return chosen


def _access_control(topology: Topology) -> Iterable[Advice]:
    switched = [link for a, b, link in topology.links if link in DIRECT and _both(topology, a, b)]
    if not switched or topology.host.virtual:
        return
    if topology.host.acs:
        why = (
            f"PCI bridges with access control on: {topology.host.acs}; P2P between GPUs behind one "
            "switch goes up to the root, or hangs; turn it off in the BIOS or with setpci"
        )
        yield Advice("ACS", None, why, SOURCES["acs"])
    elif topology.host.iommu and topology.host.acs is None:
        why = (
            "an IOMMU translates, and GPUs are behind one PCI switch: if NCCL hangs or is slow "
            "there, boot with iommu=pt and look for `SrcValid+` in `sudo lspci -vvv`"
        )
        yield Advice("IOMMU", None, why, SOURCES["acs"])


def _both(topology: Topology, a: str, b: str) -> bool:
    return {a, b} <= set(topology.gpu_labels)


def _cloud(topology: Topology) -> Iterable[Advice]:
    """Tell where a virtual machine's PCI topology is a fiction, and NCCL has no file with the real
    one."""
    links = [near.link for near in nearest(topology) if near.link]
    told = any(name == "NCCL_TOPO_FILE" for name, _ in topology.host.settings)
    if not links or set(links) & set(DIRECT) or told:
        return
    if topology.host.virtual is None and _looks_virtual(topology):
        why = (
            "every link is the same and all GPUs are near the same CPUs: if this is a virtual "
            "machine, its PCI topology is a fiction, and the cloud has a file with the real one"
        )
        yield Advice("NCCL_TOPO_FILE", None, why, SOURCES["cloud"])
    elif topology.host.virtual:
        why = (
            "a virtual machine shows NCCL no PCI switches, so it takes every NIC for far; the "
            "cloud's images have the file"
        )
        yield Advice("NCCL_TOPO_FILE", None, why, SOURCES["cloud"])


def _looks_virtual(topology: Topology) -> bool:
    gpus = set(topology.gpu_labels)
    codes = {link for a, b, link in topology.links if a in gpus or b in gpus}
    return len(codes) == 1 and len({gpu.cpus for gpu in topology.gpus}) == 1


def _device_order(topology: Topology) -> Iterable[Advice]:
    if len({gpu.name for gpu in topology.gpus if gpu.name}) > 1:
        why = "the GPUs are of several models, and CUDA counts the fastest first: not as nvidia-smi"
        yield Advice("CUDA_DEVICE_ORDER", "PCI_BUS_ID", why, SOURCES["order"], where="env")


def _zero(read: Mapping[str, Topology]) -> Iterable[Advice]:
    """The ZeRO stage that the fabric can feed; nothing where its speed is not known."""
    speeds = {host: speed for host, t in read.items() if (speed := bandwidth(t)) is not None}
    if len(read) < 2 or len(speeds) < len(read) or min(speeds.values()) >= ENOUGH:
        return
    slow = tuple(host for host, speed in speeds.items() if speed < ENOUGH)
    size = min(len(t.gpus) for t in read.values())
    why = (
        f"{min(speeds.values()):g} Gb/s per node: stage 3 gathers every layer's weights over it "
        f"in each step; below {ENOUGH} take stage 2 if it fits, or keep the gathering inside nodes"
    )
    value = f"2, or 3 with zero_hpz_partition_size {size}"
    yield Advice("ZeRO stage", value, why, SOURCES["zero"], slow)


def slots(
    said: Mapping[str, tuple[int, ...]], by_host: Mapping[str, Topology]
) -> tuple[Advice, ...]:
    """Slots of a cluster that are no GPUs; `said` has what its file says of each host."""
    found: dict[tuple[str | None, str], list[str]] = {}
    for host, topology in by_host.items():
        there = {gpu.index for gpu in topology.gpus}
        extra = sorted(set(said.get(host, ())) - there)
        if topology.status != "ok" or not extra:
            continue
        left = [slot for slot in said[host] if slot in there]
        why = f"slots {','.join(map(str, extra))} are no GPUs: nvidia-smi shows {len(there)}"
        found.setdefault((",".join(map(str, left)) or None, why), []).append(host)
    return tuple(
        Advice("slots", value, why, "nvidia-smi topo -m", hosts=tuple(hosts), where="slots")
        for (value, why), hosts in found.items()
    )


def bandwidth(topology: Topology) -> float | None:
    """Gb/s between a node and others: its RDMA devices, else the interface; None: not known."""
    rates = [nic.rate for nic in usable(topology.nics) if nic.active and nic.rate]
    if rates:
        return sum(rates)
    speed = dict(topology.host.speeds).get(topology.host.interface or "")
    return speed / 1000 if speed else None


_FOR_ONE: tuple[_Adviser, ...] = (
    _pairs,
    _peer_access,
    _direct_memory,
    _over_pcie,
    _access_control,
    _cloud,
    _device_order,
)
