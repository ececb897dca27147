"""Checks of how GPUs are linked with each other and with NICs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum

from dslaunch.plural import first_few
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
from dslaunch.preflight.checks._machine import linux_release
from dslaunch.preflight.flow import NodeFlow, each
from dslaunch.topology.comparison import Aspect, compare
from dslaunch.topology.inventory import without_uuids
from dslaunch.topology.layout import Near, nearest, summary, usable
from dslaunch.topology.model import Topology, nvlinks
from dslaunch.topology.notes import shown
from dslaunch.topology.nvlink import NvlinkStatus, nvlink_errors, nvlink_status

SERVICE = Question("run", {"argv": ["systemctl", "is-active", "nvidia-fabricmanager"]}, 10)
SWITCH = "0x0680"


class ServiceState(Enum):
    """What `systemctl is-active` prints; systemctl(1)."""

    ACTIVE = "active"
    ACTIVATING = "activating"
    DEACTIVATING = "deactivating"
    FAILED = "failed"
    INACTIVE = "inactive"


def service_state(text: str) -> ServiceState | None:
    """Parse the output of `systemctl is-active`; None: it has another form."""
    word = text.strip()
    return next((state for state in ServiceState if state.value == word), None)


def switches(a: NodeAnswers) -> int:
    """How many NVSwitches the PCI bus has."""
    return sum(of["class"].startswith(SWITCH) for of in a["pci"].values()) if a.has("pci") else 0


def _flow_gpu_fabric(a: NodeAnswers) -> NodeFlow:
    if nvidia.has_driver(a):
        asked = {"query": nvidia.QUERY}
        if switches(a):
            asked["service"] = SERVICE
        a = yield asked
    return nvidia.if_up(a, _gpu_fabric)


def _gpu_fabric(a: NodeAnswers) -> Iterator[Finding]:
    gpus_of: dict[tuple[str, str], list[int]] = {}
    for gpu in nvidia.gpus(a):
        state = gpu.text("fabric.state")
        if state is not None and state != "Not Supported":
            status = gpu.text("fabric.status") or "?"
            gpus_of.setdefault((state, status), []).append(gpu.index)
    is_ready = bool(gpus_of.pop(("Completed", "Success"), ()))
    for (state, status), gpus in gpus_of.items():
        words = f"GPU {nvidia.listed(gpus)}: fabric {state}, {status}"
        yield Finding("fail", words, "Completed, Success")
    if gpus_of:
        return
    if is_ready:
        yield passed("NVSwitch fabric is ready")
    elif switches(a):
        yield from _fabric_service(a)
    else:
        yield skipped("no NVSwitch")


def _fabric_service(a: NodeAnswers) -> Iterator[Finding]:
    """Before Hopper only the service can be asked."""
    state = service_state(a.value(SERVICE)["out"])
    if state is None:
        words = "`systemctl is-active nvidia-fabricmanager` printed no known state"
        yield Finding("unknown", words)
    elif state is ServiceState.ACTIVE:
        yield passed("nvidia-fabricmanager is active")
    else:
        yield Finding("fail", f"nvidia-fabricmanager is {state.value}", "active")


def _gpu_nvlink(a: NodeAnswers) -> Iterator[Finding]:
    status = nvlink_status(a.part(_nvlink_status))
    found = status.gpus
    if not any(found.values()):
        yield _without_nvlink(a, status)
        return
    known = {gpu.index: gpu.name for gpu in nvidia.gpus(a)}
    if known.keys() != found.keys() or not status.complete or len({*map(len, found.values())}) > 1:
        raise UnansweredError("output of `nvidia-smi nvlink -s` is incomplete")
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
            words = f"GPU {index}: NVLink {nvidia.listed(slow)} slower than the other links"
            yield Finding("warn", words, f"{fastest:g} GB/s")
    if fine:
        yield passed(f"{most} NVLinks active" if most else "no NVLink bridge")


def _nvlink_status(a: NodeAnswers) -> str:
    return without_uuids(a.value(nvidia.NVLINK)["out"])


def _without_nvlink(a: NodeAnswers, status: NvlinkStatus) -> Finding:
    names = [gpu.name for gpu in nvidia.gpus(a)]
    if status.mig:
        return skipped("MIG is enabled")
    if len(names) > 1 and any(map(nvidia.meshed, names)):
        raise UnansweredError("`nvidia-smi nvlink -s` reports no links for GPUs with NVLink")
    return skipped("no NVLink")


def _should_be_active(name: str, active: int, most: int) -> bool:
    """Whether inactive links are a fault: always on SXM boards; on cards, which need bridges, if
    another card of the node has more."""
    return nvidia.meshed(name) or 0 < active < most


def _gpu_nvlink_errors(a: NodeAnswers) -> Iterator[Finding]:
    found = nvlink_errors(a.part(_nvlink_errors))
    if not found:
        yield skipped("not reported by these GPUs or this driver")
        return
    for (gpu, kind), of in found.items():
        limit = a.limits["crc" if kind == "CRC" else "warn"]
        bad = [link for link, errors in of.items() if errors >= limit]
        if bad:
            errors = max(of[link] for link in bad)
            words = f"GPU {gpu}: NVLink {nvidia.listed(bad)}: {errors} {kind.lower()} errors"
            yield Finding("warn", words, "few")


def _nvlink_errors(a: NodeAnswers) -> str:
    return without_uuids(a.value(nvidia.NVLINK_ERRORS)["out"])


TOLD = 3
MEANING = {
    "CNS": "not supported by the chipset",
    "GNS": "not supported by the GPU",
    "TNS": "not supported by the topology",
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
        raise UnansweredError("output of `nvidia-smi topo -p2p r` cannot be parsed")
    linked = [(x, y, s) for x, y, s in known.p2p if nvlinks(known.link(x, y))]
    pairs = len(known.gpus) * (len(known.gpus) - 1) // 2
    if linked:
        yield Finding("fail", f"no peer access between GPUs with NVLink: {_pairs(linked)}", "OK")
    elif any(said == "DR" for _, _, said in known.p2p):
        yield Finding("warn", _pairs(known.p2p), "OK")
    elif known.p2p and len(known.p2p) < pairs:
        words = f"no peer access between some GPUs: {_pairs(known.p2p)}"
        yield Finding("warn", words, "OK between all GPUs")
    elif known.p2p:
        _, _, status = known.p2p[0]
        why = MEANING.get(status, status)
        words = f"no peer access between GPUs: {why}; NCCL copies through host memory"
        yield Finding("info", words)
    else:
        yield passed("peer access between all GPUs")


def _pairs(pairs: Sequence[tuple[str, str, str]]) -> str:
    """Return pairs of GPUs with their status, the first ones in words."""
    words = [f"{x}-{y} {said} ({MEANING.get(said, said)})" for x, y, said in pairs]
    return "; ".join(first_few(words, TOLD))


def _matrix(a: NodeAnswers) -> Topology:
    """Return the links of GPUs and NICs. Raises UnansweredError if there is no matrix of them."""
    known = wiring.topology(a)
    if known.status == "none":
        none = "`nvidia-smi topo -m` printed no matrix"
        raise UnansweredError(known.trouble.message if known.trouble else none)
    return known


def _topo_gpu_links(a: NodeAnswers) -> Iterator[Finding]:
    known = _matrix(a)
    missing = wiring.pairs_without_nvlink(a, known)
    if missing:
        words = [f"{one}-{two} is {link}" for one, two, link in missing]
        yield Finding("fail", "; ".join(first_few(words, TOLD)), _usual(known))
    elif known.status == "partial":
        raise UnansweredError(f"the matrix is incomplete: {shown(known.notes)}")
    elif len(known.gpus) < 2:
        yield skipped("one GPU")
    else:
        yield passed(summary(known))


def _usual(known: Topology) -> str:
    codes = sorted({link for _, _, link in known.links if nvlinks(link)})
    return f"{codes[-1]} between all GPUs" if codes else "NVLink between all GPUs"


def _topo_nic_affinity(a: NodeAnswers) -> Iterator[Finding]:
    known = _matrix(a)
    near = [each for each in nearest(known) if each.link]
    if len(a.scope.nodes) < 2 or not near:
        yield skipped("one node" if near else "no RDMA adapter")
        return
    far = wiring.far_from_cards(known)
    for link, gpus in far.items():
        words = f"GPU {nvidia.listed(gpus)}: nearest NIC at distance {link}"
        yield Finding("warn", words, "PIX or PXB")
    shared = _shared_cards(near) if len(usable(known.nics)) >= len(known.gpus) else {}
    for nic, gpus in shared.items():
        words = f"GPU {nvidia.listed(gpus)}: share {nic}, while other NICs are near no GPU"
        yield Finding("warn", words, "one NIC per GPU")
    if not (far or shared):
        distances = "/".join(sorted({each.link for each in near if each.link}))
        yield passed(f"a NIC at distance {distances} of each GPU")


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


ELSEWHERE = (Aspect.GPUS, Aspect.GPU_MODELS, Aspect.NVLINKS)
"""Aspects that other checks report: gpu.count, gpu.uniform, gpu.nvlink."""


def _compare_topo_uniform(nodes: Nodes) -> Iterator[Finding]:
    known = wiring.topologies(nodes)
    broken = {h for h, t in known.items() if wiring.pairs_without_nvlink(nodes[h], t)}
    far = {host for host, t in known.items() if wiring.far_from_cards(t)}
    found = compare(known)
    bad: set[str] = {node.host for node in found.unread}
    reported = {Aspect.GPU_LINKS: broken, Aspect.NIC_LINKS: far}
    for odd in found.odd:
        is_told = odd.aspect in ELSEWHERE or odd.host in reported.get(odd.aspect, ())
        if not is_told:
            bad.add(odd.host)
            words = f"{odd.aspect}: {odd.text}"
            yield Finding("warn", words, "as on most nodes", hosts=(odd.host,))
    for aspect, groups in found.undecided:
        if aspect not in ELSEWHERE and not broken:
            bad |= {*groups[1]}
            others = ", ".join(groups[0][:3])
            yield Finding("warn", f"{aspect} differ from those of {others}", hosts=groups[1])
    fine = tuple(host for host in known if host not in bad)
    if len(fine) > 1:
        yield Finding("pass", "same topology", hosts=fine)


MODULES = Question("read", ["/sys/module/nvidia_peermem/*", "/sys/module/nv_peer_mem/*"])
DMABUF = (5, 12)
"""The Linux that lets RDMA devices use another device's memory."""


def _gpu_peermem(a: NodeAnswers) -> Iterator[Finding]:
    if not infiniband.in_use(a):
        yield skipped("no InfiniBand or RoCE ports")
    elif a["modules"]:
        yield passed("nvidia-peermem is loaded")
    elif _dmabuf(a):
        yield passed("open kernel module and Linux 5.12 or newer: dma-buf is used")
    else:
        yield Finding("warn", "no nvidia-peermem and no dma-buf", "nvidia-peermem or dma-buf")


def _dmabuf(a: NodeAnswers) -> bool:
    """Whether the driver exports GPU memory as dma-buf: only open kernel modules do."""
    module = nvidia.kernel_module(a)
    release = linux_release(a)
    return release >= DMABUF and module is not None and module.open


CHECKS = {
    "gpu.peermem": Check(
        title="GPUDirect RDMA is available",
        why=(
            "Without GPUDirect RDMA all traffic between nodes is copied through host "
            "memory, which is 2 to 4 times slower."
        ),
        fix=(
            "run `modprobe nvidia-peermem` and add it to /etc/modules-load.d; or install "
            "the open kernel module on Linux 5.12 or newer"
        ),
        see="lsmod | grep -e peermem -e peer_mem",
        source="NCCL documentation, GPUDirect RDMA; imbue-ai/cluster-health",
        flow=nvidia.where_up(
            _gpu_peermem,
            ask=lambda scope: {**nvidia.ask(scope), "ports": wiring.PORTS, "modules": MODULES},
        ),
    ),
    "gpu.fabric": Check(
        title="NVSwitch fabric is ready",
        why="Without it CUDA does not initialize: error 802, system not yet initialized.",
        fix=("run `systemctl restart nvidia-fabricmanager`; install the version of the driver"),
        see="nvidia-smi -q | grep -A2 Fabric; systemctl status nvidia-fabricmanager",
        source="NVIDIA fabric manager user guide; imbue-ai/cluster-health",
        flow=each(_flow_gpu_fabric, nvidia.ask),
    ),
    "gpu.nvlink": Check(
        title="all NVLinks are active",
        why=(
            "With an inactive link NCCL is slower or uses PCIe; on boards with NVSwitch "
            "CUDA may not initialize."
        ),
        fix=("reset the GPUs or reboot; restart nvidia-fabricmanager; have the board inspected"),
        see="nvidia-smi nvlink -s",
        source="NVIDIA health validation (max_inactive_nvlinks 0); imbue-ai/cluster-health",
        flow=nvidia.where_up(_gpu_nvlink, {"nvlink": nvidia.NVLINK}),
    ),
    "gpu.nvlink-errors": Check(
        title="NVLink error counters are low",
        why="A link that retransmits is slow, and often the next one to fail.",
        flow=nvidia.where_up(
            _gpu_nvlink_errors,
            {"nvlink_errors": nvidia.NVLINK_ERRORS},
            fine="NVLink error counters are low",
        ),
        fix=(
            "check whether the counters grow under load; reset the GPUs, then have the "
            "board inspected"
        ),
        see="nvidia-smi nvlink -e",
        source="imbue-ai/cluster-health (5 replays or recoveries); NVIDIA DCGM (100 CRC errors)",
        limits={"warn": 5, "crc": 100},
        limits_mean="errors of one link since the driver was loaded, at which it warns",
    ),
    "gpu.p2p": Check(
        title="GPUs have peer access to each other",
        why=(
            "NCCL fails if GPUs with NVLink have no peer access, and is slow if only "
            "some pairs have it."
        ),
        fix=(
            "remove settings that disable it (NVreg_RegistryDwords); in a virtual "
            "machine or with ACS enabled see NCCL's troubleshooting page"
        ),
        see="nvidia-smi topo -p2p r",
        source="nvidia-smi topo; NCCL 2.30, src/graph/paths.cc",
        flow=nvidia.where_up(_gpu_p2p, {"topo": nvidia.TOPO, "p2p": nvidia.P2P}),
    ),
    "topo.gpu-links": Check(
        title="SXM GPUs have NVLink with each other",
        why=(
            "NCCL uses host memory between two GPUs without NVLink, and a ring is as "
            "slow as its slowest hop: tens of times slower than NVLink."
        ),
        fix=(
            "check `nvidia-smi nvlink -s` and the fabric manager; reboot; have the board inspected"
        ),
        see="nvidia-smi topo -m",
        source="nvidia-smi topo; NCCL 2.30, src/graph/paths.cc",
        flow=nvidia.where_up(_topo_gpu_links, {"topo": nvidia.TOPO}),
    ),
    "topo.nic-affinity": Check(
        title="each GPU has a NIC on the same PCIe switch",
        why=(
            "Beyond a PCIe switch NCCL does not use GPUDirect RDMA: all traffic between "
            "nodes is copied through host memory."
        ),
        fix=(
            "on a virtual machine set NCCL_TOPO_FILE to the provider's file; on your own "
            "nodes place NICs and GPUs below the same PCIe switches; else set the "
            "check's severity to info"
        ),
        see="nvidia-smi topo -m",
        source="NCCL 2.30, NCCL_NET_GDR_LEVEL (PXB by default)",
        flow=nvidia.where_up(_topo_nic_affinity, {"topo": nvidia.TOPO}, ask=_ask_wiring),
    ),
    "topo.uniform": Check(
        title="all nodes have the same GPU topology",
        why=(
            "A card in the wrong slot or behind another switch makes one node a "
            "straggler; no error is reported."
        ),
        fix="compare `lspci -tv` with that of another node: slot, riser, BIOS bifurcation",
        see="nvidia-smi topo -m",
        source="stas00/ml-engineering, network debugging; "
        "GoogleCloudPlatform/cluster-health-scanner",
        flow=nvidia.queried({"topo": nvidia.TOPO}, ask=_ask_wiring, compare=_compare_topo_uniform),
    ),
}
