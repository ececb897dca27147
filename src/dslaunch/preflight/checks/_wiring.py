"""How the checks of NVLink, topology and NICs know a node's wiring."""

from __future__ import annotations

from dslaunch.preflight.check import NodeAnswers, Nodes, Question
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.topology.answers import read
from dslaunch.topology.layout import DIRECT, nearest
from dslaunch.topology.model import Topology, nvlinks

_TOP = "/sys/class/infiniband/*"
_PORT = f"{_TOP}/ports/*"
PORTS = Question(
    "read",
    [f"{_PORT}/{name}" for name in ("state", "phys_state", "rate", "link_layer")]
    + [f"{_PORT}/counters/link_downed", f"{_TOP}/fw_ver", f"{_TOP}/board_id", f"{_TOP}/hca_type"]
    + [
        f"{_TOP}/device/{which}_link_{what}"
        for which in ("current", "max")
        for what in ("width", "speed")
    ]
    + [f"{_TOP}/device/net/*/mtu"],
)
"""All RDMA devices from the kernel's own tables; no tool, no root."""


def topology(a: NodeAnswers) -> Topology:
    """The node's wiring. Raises UnansweredError."""
    return a.part(_topology)


def _topology(a: NodeAnswers) -> Topology:
    answers = {"topo_m": a.value(nvidia.TOPO)["out"], **_ports(a)}
    for name, question in (
        ("gpu_list", nvidia.LIST),
        ("p2p", nvidia.P2P),
        ("nvlink", nvidia.NVLINK),
    ):
        if a.answered(question):
            answers[name] = a.value(question)["out"]
    return read(answers)


def _ports(a: NodeAnswers) -> dict[str, str]:
    files = a.found(PORTS) or {}
    nets = (path.removesuffix("/mtu") for path in files if "/device/net/" in path)
    # counters differ from node to node, and say nothing of the wiring
    ports = {path: text for path, text in files.items() if "/ports/" in path}
    lines = [f"{path}:{text}" for path, text in ports.items() if "/counters/" not in path]
    return {"ib": "\n".join(lines), "ib_net": "\n".join(nets)}


def topologies(nodes: Nodes) -> dict[str, Topology]:
    """Of all nodes whose matrix was answered."""
    return {host: topology(a) for host, a in nvidia.up(nodes).items() if a.answered(nvidia.TOPO)}


def far_from_cards(known: Topology) -> dict[str, list[int]]:
    """GPUs that no card reaches by itself, by the link to their nearest."""
    far: dict[str, list[int]] = {}
    for each in nearest(known):
        if each.link and each.link not in DIRECT:
            far.setdefault(each.link, []).append(each.gpu)
    return far


def pairs_without_nvlink(a: NodeAnswers, known: Topology) -> list[tuple[str, str, str]]:
    """Pairs of GPUs that should have NVLink and have not, with the link that they have."""
    names = {gpu.index: gpu.name for gpu in nvidia.gpus(a)}
    boards = {gpu.label for gpu in known.gpus if nvidia.meshed(names.get(gpu.index, ""))}
    return [
        (one, two, link)
        for one, two, link in known.links
        if one in boards and two in boards and not nvlinks(link)
    ]
