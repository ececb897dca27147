"""Whether each GPU has a network card near it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dslaunch.preflight.check import (
    Answers,
    Asked,
    Check,
    Scope,
    UnansweredError,
    Verdict,
    passed,
    skipped,
)
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.checks import _wiring as wiring

if TYPE_CHECKING:
    from dslaunch.topology.layout import Near


def _judge(a: Answers) -> Iterator[Verdict]:
    from dslaunch.topology.layout import nearest, usable

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
        yield Verdict("warn", words, "PIX or PXB")
    shared = _shared(near) if len(usable(known.nics)) >= len(known.gpus) else {}
    for nic, gpus in shared.items():
        words = f"GPU {nvidia.listed(gpus)}: share {nic}, and other cards are near none"
        yield Verdict("warn", words, "a card for each")
    if not (far or shared):
        yield passed(f"a card at {'/'.join(sorted({n.link for n in near if n.link}))} of each GPU")


def _shared(near: list[Near]) -> dict[str, list[int]]:
    """Cards that are the only near one of several GPUs."""
    alone = Counter(each.nics[0].shown for each in near if len(each.nics) == 1)
    return {
        nic: [each.gpu for each in near if len(each.nics) == 1 and each.nics[0].shown == nic]
        for nic, times in alone.items()
        if times > 1
    }


def _ask(scope: Scope) -> Asked:
    return {**nvidia.ask(scope), "ports": wiring.PORTS}


CHECK = Check(
    title="each GPU has a network card near it",
    tier="static",
    why="Beyond a PCIe switch NCCL does not let the card reach the GPU's memory by itself "
    "(GPUDirect RDMA): all traffic between nodes then goes through host memory.",
    fix="on a virtual machine give NCCL the provider's NCCL_TOPO_FILE; on your own put cards and "
    "GPUs below the same switches; else accept it and set severity info",
    see="nvidia-smi topo -m",
    source="NCCL 2.30, NCCL_NET_GDR_LEVEL (PXB by default)",
    ask=_ask,
    flow=nvidia.where_up(_judge, topo=nvidia.TOPO),
)
