"""Whether all nodes are wired alike."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Asked, Check, Nodes, Scope, Verdict
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.checks import _wiring as wiring

ELSEWHERE = ("GPUs", "GPU models", "active NVLinks")
"""What checks of their own say: gpu.count, gpu.uniform, gpu.nvlink."""


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    from dslaunch.topology.comparison import compare

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
            yield Verdict("warn", words, "as on most nodes", hosts=(odd.host,))
    for aspect, groups in found.undecided:
        if aspect not in ELSEWHERE and not broken:
            bad |= {*groups[1]}
            others = ", ".join(groups[0][:3])
            yield Verdict("warn", f"{aspect} differ from those of {others}", hosts=groups[1])
    fine = tuple(host for host in known if host not in bad)
    if len(fine) > 1:
        yield Verdict("pass", "wired alike", hosts=fine)


def _ask(scope: Scope) -> Asked:
    return {**nvidia.ask(scope), "ports": wiring.PORTS}


CHECK = Check(
    title="all nodes are wired alike",
    tier="static",
    why="A card in the wrong slot or behind another switch makes one node slower than the others, "
    "which wait for it; no error tells of it.",
    fix="compare `lspci -tv` with that of another node: slot, riser, BIOS bifurcation",
    see="nvidia-smi topo -m",
    source="stas00/ml-engineering, network debugging; GoogleCloudPlatform/cluster-health-scanner",
    ask=_ask,
    flow=nvidia.asking(topo=nvidia.TOPO),
    compare=_compare,
)
