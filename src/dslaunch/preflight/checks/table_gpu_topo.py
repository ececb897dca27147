"""Checks of how GPUs are linked with each other and with network cards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from dslaunch.preflight.check import (
    Asked,
    Check,
    Finding,
    NodeAnswers,
    Nodes,
    Question,
    Scope,
    UnansweredError,
    passed,
    skipped,
)
from dslaunch.preflight.checks import _infiniband as infiniband
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.checks import _wiring as wiring
from dslaunch.preflight.flow import NodeFlow, each
from dslaunch.topology.comparison import compare
from dslaunch.topology.inventory import link_speeds, without_uuids
from dslaunch.topology.layout import Near, nearest, summary, usable
from dslaunch.topology.model import Topology, nvlinks

SERVICE = Question("run", {"argv": ["systemctl", "is-active", "nvidia-fabricmanager"]}, 10)
SWITCH = "0x0680"


def switches(a: NodeAnswers) -> int:
    """How many NVSwitches the PCI bus has."""
    return sum(of["class"].startswith(SWITCH) for of in a["pci"].values()) if a.has("pci") else 0


def _flow_gpu_fabric(a: NodeAnswers) -> NodeFlow:
    if nvidia.has_driver(a):
        a = yield {"query": nvidia.QUERY, **({"service": SERVICE} if switches(a) else {})}
    return nvidia.if_up(a, _gpu_fabric)


def _gpu_fabric(a: NodeAnswers) -> Iterator[Finding]:
    states: dict[tuple[str, str], list[int]] = {}
    for gpu in nvidia.gpus(a):
        state = gpu.text("fabric.state")
        if state not in (None, "Not Supported"):
            states.setdefault((state or "", gpu.text("fabric.status") or "?"), []).append(gpu.index)
    for (state, status), gpus in states.items():
        if (state, status) != ("Completed", "Success"):
            words = f"GPU {nvidia.listed(gpus)}: fabric {state}, {status}"
            yield Finding("fail", words, "Completed, Success")
    if any(state != ("Completed", "Success") for state in states):
        return
    if states:
        yield passed("the fabric is ready")
    elif switches(a):
        yield from _fabric_service(a)
    else:
        yield skipped("no NVSwitch")


def _fabric_service(a: NodeAnswers) -> Iterator[Finding]:
    """Before Hopper only the service can be asked."""
    said = a.value(SERVICE)["out"].strip()
    if said == "active":
        yield passed("nvidia-fabricmanager is active")
    elif said in ("inactive", "failed", "deactivating", "activating"):
        yield Finding("fail", f"nvidia-fabricmanager is {said}", "active")
    else:
        yield Finding("unknown", "`systemctl is-active nvidia-fabricmanager` says nothing of use")


_GPU = re.compile(r"^GPU (\d{1,4}): ")
_LINK = re.compile(r"^\s+Link (\d{1,3}): (?:(\d{1,9}(?:\.\d{1,9})?) GB/s|<inactive>)\s*$")


@dataclass(frozen=True, slots=True)
class NvlinkStatus:
    """What `nvidia-smi nvlink -s` prints."""

    gpus: Mapping[int, Mapping[int, float]]
    """By GPU and link, GB/s; 0: inactive."""
    whole: bool
    """Whether every line is one of a GPU or a link, and the last one has its end."""
    mig: bool
    """Whether it has no links since MIG is enabled."""

    @classmethod
    def parse(cls, text: str) -> NvlinkStatus:
        """Read what it printed."""
        lines = [line for line in text.splitlines() if line.strip()]
        known = all(_LINK.match(line) or _GPU.match(line) for line in lines)
        return cls(
            gpus=link_speeds(text),
            whole=known and text.endswith("\n"),
            mig="not supported for Devices in MIG mode" in text,
        )


_nvlink_status = lru_cache(maxsize=64)(NvlinkStatus.parse)


def _gpu_nvlink(a: NodeAnswers) -> Iterator[Finding]:
    status = _nvlink_status(without_uuids(a.value(nvidia.NVLINK)["out"]))
    found = status.gpus
    if not any(found.values()):
        yield _without_nvlink(a, status)
        return
    known = {gpu.index: gpu.name for gpu in nvidia.gpus(a)}
    if known.keys() != found.keys() or not status.whole or len({*map(len, found.values())}) > 1:
        raise UnansweredError("`nvidia-smi nvlink -s` cannot be read whole")
    most = max(sum(speed > 0 for speed in of.values()) for of in found.values())
    fastest = max(speed for of in found.values() for speed in of.values())
    fine = True
    for index, of in found.items():
        down = [number for number, speed in of.items() if not speed]
        slow = [number for number, speed in of.items() if 0 < speed < fastest]
        if down and _should_be_active(known.get(index, ""), len(of) - len(down), most):
            fine = False
            words = (
                f"GPU {index}: {len(down)} of {len(of)} NVLinks inactive ({nvidia.listed(down)})"
            )
            yield Finding("fail", words, "all active")
        if slow:
            fine = False
            words = f"GPU {index}: NVLink {nvidia.listed(slow)} slower than the others"
            yield Finding("warn", words, f"{fastest:g} GB/s")
    if fine:
        yield passed(f"{most} NVLinks active" if most else "no NVLink bridge")


def _without_nvlink(a: NodeAnswers, status: NvlinkStatus) -> Finding:
    names = [gpu.name for gpu in nvidia.gpus(a)]
    if status.mig:
        return skipped("MIG is enabled")
    if len(names) > 1 and any(map(nvidia.meshed, names)):
        raise UnansweredError("`nvidia-smi nvlink -s` names no links of GPUs that have some")
    return skipped("no NVLink")


def _should_be_active(name: str, active: int, most: int) -> bool:
    """Whether inactive links are a fault: always on SXM boards; on cards, which need bridges, if
    another card of the node has more."""
    return nvidia.meshed(name) or 0 < active < most


_COUNTER = re.compile(r"^\s+Link (\d{1,3}): (Replay|Recovery|CRC) Errors: (\d{1,18})\s*$")


@lru_cache(maxsize=64)
def counters(text: str) -> Mapping[tuple[int, str], Mapping[int, int]]:
    """Read `nvidia-smi nvlink -e`: by GPU and kind, the errors of each link."""
    found: dict[tuple[int, str], dict[int, int]] = {}
    index = None
    for line in text.splitlines():
        # nearly all lines are counters
        if link := _COUNTER.match(line):
            if index is not None:
                found.setdefault((index, link[2]), {})[int(link[1])] = int(link[3])
        elif gpu := _GPU.match(line):
            index = int(gpu[1])
    return found


def _gpu_nvlink_errors(a: NodeAnswers) -> Iterator[Finding]:
    found = counters(without_uuids(a.value(nvidia.NVLINK_ERRORS)["out"]))
    if not found:
        yield skipped("these GPUs or this driver do not tell")
        return
    for (gpu, kind), of in found.items():
        limit = a.limits["crc" if kind == "CRC" else "warn"]
        bad = [link for link, errors in of.items() if errors >= limit]
        if bad:
            errors = max(of[link] for link in bad)
            words = f"GPU {gpu}: NVLink {nvidia.listed(bad)}: {errors} {kind.lower()} errors"
            yield Finding("warn", words, "few")


TOLD = 3
MEANING = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "NS": "not supported",
    "DR": "disabled by a driver setting",
    "U": "unknown",
}


def _gpu_p2p(a: NodeAnswers) -> Iterator[Finding]:
    known = wiring.topology(a)
    if len(nvidia.gpus(a)) < 2:
        yield skipped("one GPU")
        return
    if not known.p2p_known:
        raise UnansweredError("what `nvidia-smi topo -p2p r` says cannot be read")
    linked = [(x, y, s) for x, y, s in known.p2p if nvlinks(known.link(x, y))]
    pairs = len(known.gpus) * (len(known.gpus) - 1) // 2
    if linked:
        yield Finding("fail", f"between GPUs with NVLink: {_pairs(linked)}", "OK")
    elif any(said == "DR" for _, _, said in known.p2p):
        yield Finding("warn", _pairs(known.p2p), "OK")
    elif known.p2p and len(known.p2p) < pairs:
        yield Finding("warn", f"between some GPUs only: {_pairs(known.p2p)}", "OK between all")
    elif known.p2p:
        yield Finding(
            "info", f"between no GPUs: {MEANING[known.p2p[0][2]]}; NCCL copies over host memory"
        )
    else:
        yield passed("between all GPUs")


def _pairs(pairs: list[tuple[str, str, str]] | tuple[tuple[str, str, str], ...]) -> str:
    words = "; ".join(f"{x}-{y} {said} ({MEANING.get(said, said)})" for x, y, said in pairs[:TOLD])
    return words + (f"; and {len(pairs) - TOLD} more" if len(pairs) > TOLD else "")


def _topo_gpu_links(a: NodeAnswers) -> Iterator[Finding]:
    known = wiring.topology(a)
    if known.status == "none":
        raise UnansweredError(known.trouble.message if known.trouble else "there is no matrix")
    missing = wiring.pairs_without_nvlink(a, known)
    if missing:
        words = "; ".join(f"{one}-{two} is {link}" for one, two, link in missing[:TOLD])
        more = f"; and {len(missing) - TOLD} more" if len(missing) > TOLD else ""
        yield Finding("fail", words + more, _usual(known))
    elif known.status == "partial":
        raise UnansweredError("the matrix was read in part: " + "; ".join(known.notes[:TOLD]))
    elif len(known.gpus) < 2:
        yield skipped("one GPU")
    else:
        yield passed(summary(known))


def _usual(known: Topology) -> str:
    codes = sorted({link for _, _, link in known.links if nvlinks(link)})
    return f"{codes[-1]} between all GPUs" if codes else "NVLink between all GPUs"


def _topo_nic_affinity(a: NodeAnswers) -> Iterator[Finding]:
    known = wiring.topology(a)
    if known.status == "none":
        raise UnansweredError(known.trouble.message if known.trouble else "there is no matrix")
    near = [each for each in nearest(known) if each.link]
    if len(a.scope.nodes) < 2 or not near:
        yield skipped("one node" if near else "no RDMA card")
        return
    far = wiring.far_from_cards(known)
    for link, gpus in far.items():
        words = f"GPU {nvidia.listed(gpus)}: the nearest card is {link} away"
        yield Finding("warn", words, "PIX or PXB")
    shared = _shared_cards(near) if len(usable(known.nics)) >= len(known.gpus) else {}
    for nic, gpus in shared.items():
        words = f"GPU {nvidia.listed(gpus)}: share {nic}, and other cards are near none"
        yield Finding("warn", words, "a card for each")
    if not (far or shared):
        yield passed(f"a card at {'/'.join(sorted({n.link for n in near if n.link}))} of each GPU")


def _shared_cards(near: list[Near]) -> dict[str, list[int]]:
    """Cards that are the only near one of several GPUs."""
    alone = Counter(each.nics[0].shown for each in near if len(each.nics) == 1)
    return {
        nic: [each.gpu for each in near if len(each.nics) == 1 and each.nics[0].shown == nic]
        for nic, times in alone.items()
        if times > 1
    }


def _ask_wiring(scope: Scope) -> Asked:
    return {**nvidia.ask(scope), "ports": wiring.PORTS}


ELSEWHERE = ("GPUs", "GPU models", "active NVLinks")
"""What checks of their own say: gpu.count, gpu.uniform, gpu.nvlink."""


def _compare_topo_uniform(nodes: Nodes) -> Iterator[Finding]:
    known = wiring.topologies(nodes)
    broken = {h for h, t in known.items() if wiring.pairs_without_nvlink(nodes[h], t)}
    far = {host for host, t in known.items() if wiring.far_from_cards(t)}
    found = compare(known)
    bad: set[str] = {host for host, _ in found.unread}
    for odd in found.odd:
        told = odd.aspect in ELSEWHERE or odd.host in {
            "GPU links": broken,
            "GPU-NIC links": far,
        }.get(odd.aspect, ())
        if not told:
            bad.add(odd.host)
            words = f"{odd.aspect}: {odd.difference}"
            yield Finding("warn", words, "as on most nodes", hosts=(odd.host,))
    for aspect, groups in found.undecided:
        if aspect not in ELSEWHERE and not broken:
            bad |= {*groups[1]}
            others = ", ".join(groups[0][:3])
            yield Finding("warn", f"{aspect} differ from those of {others}", hosts=groups[1])
    fine = tuple(host for host in known if host not in bad)
    if len(fine) > 1:
        yield Finding("pass", "wired alike", hosts=fine)


MODULES = Question("read", ["/sys/module/nvidia_peermem/*", "/sys/module/nv_peer_mem/*"])
DMABUF = (5, 12)
"""The Linux that lets RDMA devices use another device's memory."""


def _gpu_peermem(a: NodeAnswers) -> Iterator[Finding]:
    if not infiniband.in_use(a):
        yield skipped("no InfiniBand or RoCE")
    elif a["modules"]:
        yield passed("nvidia-peermem is loaded")
    elif _dmabuf(a):
        yield passed("the open driver and this kernel share memory by dma-buf")
    else:
        yield Finding("warn", "neither nvidia-peermem nor dma-buf", "one of them")


def _dmabuf(a: NodeAnswers) -> bool:
    """Only the open kernel modules give GPU memory out as dma-buf."""
    kernel = re.match(r"(\d+)\.(\d+)", a.hello.get("kernel", ""))
    new = kernel is not None and (int(kernel[1]), int(kernel[2])) >= DMABUF
    return new and "Open Kernel" in " ".join(a["driver"].values())


CHECKS = {
    "gpu.peermem": Check(
        title="network cards can reach GPU memory",
        why="Without GPUDirect RDMA all traffic between nodes is copied through host memory, and "
        "is 2 to 4 times slower.",
        fix="`modprobe nvidia-peermem`, and name it in /etc/modules-load.d; or use the open "
        "driver on Linux 5.12 or newer",
        see="lsmod | grep -e peermem -e peer_mem",
        source="NCCL documentation, GPUDirect RDMA; imbue-ai/cluster-health",
        ask=lambda scope: {**nvidia.ask(scope), "ports": wiring.PORTS, "modules": MODULES},
        flow=nvidia.where_up(_gpu_peermem),
    ),
    "gpu.fabric": Check(
        title="the fabric of NVSwitches is ready",
        why="Without it CUDA does not start: error 802, system not yet initialized.",
        fix="`systemctl restart nvidia-fabricmanager`; its version must be that of the driver",
        see="nvidia-smi -q | grep -A2 Fabric; systemctl status nvidia-fabricmanager",
        source="NVIDIA fabric manager user guide; imbue-ai/cluster-health",
        ask=nvidia.ask,
        flow=each(_flow_gpu_fabric),
    ),
    "gpu.nvlink": Check(
        title="all NVLinks are up",
        why="With a link down NCCL is slower, or goes over PCIe; on boards with NVSwitch CUDA may "
        "not start at all.",
        fix="reset the GPUs or reboot; restart nvidia-fabricmanager; have the board looked at",
        see="nvidia-smi nvlink -s",
        source="NVIDIA health validation (max_inactive_nvlinks 0); imbue-ai/cluster-health",
        ask=nvidia.ask,
        flow=nvidia.where_up(_gpu_nvlink, nvlink=nvidia.NVLINK),
    ),
    "gpu.nvlink-errors": Check(
        title="NVLinks count few errors",
        why="A link that repeats its packets is slow, and often the one that fails next.",
        fine="few NVLink errors",
        fix="see whether the numbers grow while the GPUs work; reset the GPUs, then have the "
        "board looked at",
        see="nvidia-smi nvlink -e",
        source="imbue-ai/cluster-health (5 replays or recoveries); NVIDIA DCGM (100 CRC errors)",
        ask=nvidia.ask,
        flow=nvidia.where_up(_gpu_nvlink_errors, nvlink_errors=nvidia.NVLINK_ERRORS),
        limits={"warn": 5, "crc": 100},
        limits_mean="errors of one link since the driver was loaded, from which it warns",
    ),
    "gpu.p2p": Check(
        title="GPUs can read each other's memory",
        why="NCCL fails if GPUs with NVLink between them may not reach each other, and is slow "
        "where only some pairs may.",
        fix="take back settings that disable it (NVreg_RegistryDwords); in a virtual machine or "
        "with ACS on see NCCL's troubleshooting page",
        see="nvidia-smi topo -p2p r",
        source="nvidia-smi topo; NCCL 2.30, src/graph/paths.cc",
        ask=nvidia.ask,
        flow=nvidia.where_up(_gpu_p2p, topo=nvidia.TOPO, p2p=nvidia.P2P),
    ),
    "topo.gpu-links": Check(
        title="GPUs that are made for it have NVLink with each other",
        why="NCCL goes through host memory between two GPUs without NVLink, and its ring is as "
        "slow as its slowest hop: tens of times slower than NVLink.",
        fix="see `nvidia-smi nvlink -s` and the fabric manager; reboot; have the board looked at",
        see="nvidia-smi topo -m",
        source="nvidia-smi topo; NCCL 2.30, src/graph/paths.cc",
        ask=nvidia.ask,
        flow=nvidia.where_up(_topo_gpu_links, topo=nvidia.TOPO),
    ),
    "topo.nic-affinity": Check(
        title="each GPU has a network card near it",
        why="Beyond a PCIe switch NCCL does not let the card reach the GPU's memory by itself "
        "(GPUDirect RDMA): all traffic between nodes then goes through host memory.",
        fix="on a virtual machine give NCCL the provider's NCCL_TOPO_FILE; on your own put cards "
        "and GPUs below the same switches; else accept it and set severity info",
        see="nvidia-smi topo -m",
        source="NCCL 2.30, NCCL_NET_GDR_LEVEL (PXB by default)",
        ask=_ask_wiring,
        flow=nvidia.where_up(_topo_nic_affinity, topo=nvidia.TOPO),
    ),
    "topo.uniform": Check(
        title="all nodes are wired alike",
        why="A card in the wrong slot or behind another switch makes one node slower than the "
        "others, which wait for it; no error tells of it.",
        fix="compare `lspci -tv` with that of another node: slot, riser, BIOS bifurcation",
        see="nvidia-smi topo -m",
        source="stas00/ml-engineering, network debugging; "
        "GoogleCloudPlatform/cluster-health-scanner",
        ask=_ask_wiring,
        flow=nvidia.asking(topo=nvidia.TOPO),
        compare=_compare_topo_uniform,
    ),
}
