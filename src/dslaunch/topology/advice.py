"""Advice on settings for the machines; each advice has a code and a source.

Advice is never applied automatically. Advice for a cluster file has the key to set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from msgspec.structs import replace

from dslaunch.topology.advice_codes import FIXED_P2P, Advice, advice
from dslaunch.topology.advice_codes import AdviceCode as Code
from dslaunch.topology.layout import (
    DIRECT,
    KEPT,
    Near,
    islands,
    linked,
    mesh,
    nearest,
    ring,
    usable,
)
from dslaunch.topology.model import Gpu, Topology, distance, nvlinks

ENOUGH = 100
"""Gb/s between nodes below which ZeRO-3's gathering of weights slows down the GPUs."""
_ODD_INTERFACE = re.compile(r"lo|docker|virbr|veth|br-|tun|tap|wl|cni|flannel|cali")


_Adviser = Callable[[Topology], Iterable[Advice]]


def advise(by_host: Mapping[str, Topology]) -> tuple[Advice, ...]:
    """Return advice for the nodes of a run; equal advice is returned once for all of them."""
    read = {host: t for host, t in by_host.items() if t.status == "ok" and t.gpus}
    found: dict[Advice, list[str]] = {}
    for host, topology in read.items():
        for one in _for_one(topology):
            found.setdefault(one, []).append(host)
    alone = [replace(one, hosts=tuple(hosts)) for one, hosts in found.items()]
    return (*_interfaces(by_host), *_hcas(read), *alone, *_zero(read))


@lru_cache(maxsize=KEPT)
def _for_one(topology: Topology) -> tuple[Advice, ...]:
    return tuple(one for adviser in _FOR_ONE for one in adviser(topology))


def _interfaces(by_host: Mapping[str, Topology]) -> Iterable[Advice]:
    """Yield the interface for the cluster file if all nodes have the same one, else per node."""
    by_name: dict[str, list[str]] = {}
    for host, topology in by_host.items():
        if topology.host.interface:
            by_name.setdefault(topology.host.interface, []).append(host)
    for name, having in by_name.items():
        hosts = tuple(having)
        if _ODD_INTERFACE.match(name):
            yield advice(Code.ROUTE_NOT_PHYSICAL, "routes", hosts=hosts, interface=name)
        elif len(by_name) == 1:
            setting = "network.interface"
            yield advice(
                Code.INTERFACE_COMMON,
                setting,
                name,
                where="interface",
                hosts=hosts,
                interface=name,
            )
        else:
            for variable, value in (
                ("NCCL_SOCKET_IFNAME", f"={name}"),
                ("GLOO_SOCKET_IFNAME", name),
            ):
                yield advice(
                    Code.INTERFACE_DIFFERS,
                    variable,
                    value,
                    where="env",
                    hosts=hosts,
                    interface=name,
                )


def _hcas(read: Mapping[str, Topology]) -> Iterable[Advice]:
    """Yield NCCL_IB_HCA if NCCL would use devices that ranks should not use."""
    wanted = {host: chosen for host, t in read.items() if (chosen := _devices(t))}
    excluded = {host: _excluded(read[host], chosen) for host, chosen in wanted.items()}
    if not any(excluded.values()):
        return
    groups: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for host, chosen in wanted.items():
        groups.setdefault((chosen, excluded[host]), []).append(host)
    for (chosen, without), having in groups.items():
        value = "=" + ",".join(chosen)
        hosts = tuple(having)
        if without:
            yield advice(
                Code.DEVICES_EXCLUDED,
                "NCCL_IB_HCA",
                value,
                where="env",
                hosts=hosts,
                excluded=without,
            )
        else:
            yield advice(Code.DEVICES_ALL, "NCCL_IB_HCA", value, where="env", hosts=hosts)


@lru_cache(maxsize=KEPT)
def _devices(topology: Topology) -> tuple[str, ...] | None:
    """Return the devices for ranks; None: a name is unknown, or no device needs to be excluded."""
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
    """Return the excluded devices, each with its reason."""
    words = []
    for nic in topology.nics:
        if nic.device is None or nic.device in chosen:
            continue
        if nic.bond:
            why = "a bond"
        elif nic.active is False:
            why = "down"
        elif nic.layer == "Ethernet" and nic not in usable(topology.nics):
            why = "Ethernet next to InfiniBand"
        else:
            why = "far from all GPUs"
        words.append(f"{nic.device} ({why})")
    return ", ".join(words)


def _pairs(topology: Topology) -> Iterable[Advice]:
    """Yield slots for jobs with two GPUs, if pairs differ."""
    if mesh(topology) or len(topology.gpus) < 3:
        return
    best = _matched(topology)
    if not best:
        return
    value = " or ".join(f"{a},{b}" for a, b in best)
    worst = ring(topology)
    far = worst is not None and not nvlinks(worst.worst)
    slots_of_pairs = "slots of a two-GPU job"
    if worst and far:
        yield advice(Code.PAIRS_BY_NVLINK, slots_of_pairs, value, worst=worst.worst)
    else:
        yield advice(Code.PAIRS_BY_NVLINK_ONLY, slots_of_pairs, value)
    order = [gpu for island in islands(topology) for gpu in island]
    if order != sorted(order):
        ranks = ",".join(map(str, order))
        yield advice(Code.RANKS_ON_ISLANDS, "CUDA_VISIBLE_DEVICES", ranks)


def _matched(topology: Topology) -> list[tuple[int, int]]:
    """Return disjoint pairs of GPUs, those with the most NVLinks first."""
    gpus = [gpu.index for gpu in topology.gpus]
    pairs = [(a, b) for a in gpus for b in gpus if a < b and linked(topology, a, b)]
    best: list[tuple[int, int]] = []
    for a, b in sorted(pairs, key=lambda pair: (-linked(topology, *pair), pair)):
        if not {a, b} & {gpu for pair in best for gpu in pair}:
            best.append((a, b))
    return sorted(best)


def _peer_access(topology: Topology) -> Iterable[Advice]:
    old = [gpu for gpu in topology.gpus if _without_p2p_report(gpu)]
    if old and len(topology.gpus) > 1:
        driver = old[0].driver or ""
        yield advice(Code.P2P_HANGS, "NCCL_P2P_DISABLE", "1", where="env", driver=driver)
    elif not topology.p2p_known and len(topology.gpus) > 1 and all(map(_rtx40, topology.gpus)):
        yield advice(Code.P2P_MISSING, "P2P")
    elif topology.p2p:
        statuses = ", ".join(sorted({status for *_, status in topology.p2p}))
        yield advice(Code.P2P_DENIED, "P2P", pairs=len(topology.p2p), statuses=statuses)


def _rtx40(gpu: Gpu) -> bool:
    return re.search(r"RTX 40\d\d", gpu.name or "") is not None


def _without_p2p_report(gpu: Gpu) -> bool:
    version = tuple(int(part) for part in re.findall(r"[0-9]{1,9}", gpu.driver or ""))
    return _rtx40(gpu) and bool(version) and version < FIXED_P2P


def _direct_memory(topology: Topology) -> Iterable[Advice]:
    """Yield advice on NICs too far from GPUs for GPUDirect RDMA, unless a hypervisor hides the PCIe
    switches."""
    far = [near for near in nearest(topology) if near.link and near.link not in DIRECT]
    if not far or topology.host.virtual:
        return
    if _coherent(topology):
        yield _over_c2c(far, len(topology.gpus))
        return
    links = "/".join(sorted({near.link for near in far if near.link}, key=distance))
    gpus = len(topology.gpus)
    yield advice(Code.NIC_FAR, "GPUDirect RDMA", far=len(far), gpus=gpus, links=links)


def _coherent(topology: Topology) -> bool:
    """Return whether GPUs are linked to their CPUs by NVLink-C2C: their memory is a NUMA node."""
    named = any(re.search(r"\bG(?:H|B)(?:10|200|300)\b", gpu.name or "") for gpu in topology.gpus)
    return named or any(gpu.memory_numa is not None for gpu in topology.gpus)


def _over_c2c(far: list[Near], gpus: int) -> Advice:
    """Return advice: NICs at the GPU's own CPU reach its memory over C2C, others do not."""
    other = [near for near in far if near.link == "SYS"]
    if other:
        return advice(Code.NIC_AT_OTHER_CPU, "GPUDirect RDMA", far=len(other), gpus=gpus)
    return advice(Code.NIC_OVER_C2C, "GPUDirect RDMA")


def _over_pcie(topology: Topology) -> Iterable[Advice]:
    """Yield advice for machines without NVLink: the nearest pairs, and the limit of P2P."""
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
        yield advice(Code.PAIRS_BY_PCIE, "slots of a two-GPU job", value, links="/".join(far))
    if far:
        level = "SYS" if "SYS" in far else "PHB"
        yield advice(
            Code.P2P_LEVEL,
            "NCCL_P2P_LEVEL",
            far=len(links) - len(near),
            pairs=len(links),
            links="/".join(far),
            level=level,
        )


def _apart(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return disjoint pairs, the first ones first."""
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
        yield advice(Code.ACS_ENABLED, "ACS", bridges=topology.host.acs)
    elif topology.host.iommu and topology.host.acs is None:
        yield advice(Code.IOMMU_ENABLED, "IOMMU")


def _both(topology: Topology, a: str, b: str) -> bool:
    return {a, b} <= set(topology.gpu_labels)


def _cloud(topology: Topology) -> Iterable[Advice]:
    """Yield advice if a virtual machine hides the PCIe topology, and NCCL has no file with it."""
    links = [near.link for near in nearest(topology) if near.link]
    has_file = any(name == "NCCL_TOPO_FILE" for name, _ in topology.host.settings)
    if not links or set(links) & set(DIRECT) or has_file:
        return
    if topology.host.virtual is None and _looks_virtual(topology):
        yield advice(Code.TOPOLOGY_MAYBE_VIRTUAL, "NCCL_TOPO_FILE")
    elif topology.host.virtual:
        yield advice(Code.TOPOLOGY_VIRTUAL, "NCCL_TOPO_FILE")


def _looks_virtual(topology: Topology) -> bool:
    gpus = set(topology.gpu_labels)
    codes = {link for a, b, link in topology.links if a in gpus or b in gpus}
    return len(codes) == 1 and len({gpu.cpus for gpu in topology.gpus}) == 1


def _device_order(topology: Topology) -> Iterable[Advice]:
    if len({gpu.name for gpu in topology.gpus if gpu.name}) > 1:
        yield advice(Code.MODELS_DIFFER, "CUDA_DEVICE_ORDER", "PCI_BUS_ID", where="env")


def _zero(read: Mapping[str, Topology]) -> Iterable[Advice]:
    """Yield the ZeRO stage for the speed of the fabric; nothing if the speed is unknown."""
    speeds = {host: speed for host, t in read.items() if (speed := bandwidth(t)) is not None}
    if len(read) < 2 or len(speeds) < len(read) or min(speeds.values()) >= ENOUGH:
        return
    slow = tuple(host for host, speed in speeds.items() if speed < ENOUGH)
    size = min(len(t.gpus) for t in read.values())
    slowest = min(speeds.values())
    value = f"2, or 3 with zero_hpz_partition_size {size}"
    yield advice(
        Code.NETWORK_SLOW, "ZeRO stage", value, hosts=slow, gigabits=slowest, enough=ENOUGH
    )


def slots(
    listed: Mapping[str, tuple[int, ...]], by_host: Mapping[str, Topology]
) -> tuple[Advice, ...]:
    """Return slots of a cluster without a GPU; `listed` has the slots of the file by host."""
    found: dict[Advice, list[str]] = {}
    for host, topology in by_host.items():
        there = {gpu.index for gpu in topology.gpus}
        extra = sorted(set(listed.get(host, ())) - there)
        if topology.status != "ok" or not extra:
            continue
        left = [slot for slot in listed[host] if slot in there]
        value = ",".join(map(str, left)) or None
        missing = ",".join(map(str, extra))
        each = advice(
            Code.SLOTS_WITHOUT_GPU, "slots", value, where="slots", slots=missing, gpus=len(there)
        )
        found.setdefault(each, []).append(host)
    return tuple(replace(each, hosts=tuple(hosts)) for each, hosts in found.items())


def bandwidth(topology: Topology) -> float | None:
    """Return Gb/s between a node and others: of its RDMA devices, else its interface; None:
    unknown."""
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
