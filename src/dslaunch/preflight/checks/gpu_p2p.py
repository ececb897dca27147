"""Whether GPUs can read each other's memory."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, UnansweredError, Verdict, passed, skipped
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.checks import _wiring as wiring

TOLD = 3
MEANING = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "NS": "not supported",
    "DR": "disabled by a driver setting",
    "U": "unknown",
}


def _judge(a: Answers) -> Iterator[Verdict]:
    from dslaunch.topology.model import nvlinks

    known = wiring.topology(a)
    if len(nvidia.gpus(a)) < 2:
        yield skipped("one GPU")
        return
    if not known.p2p_known:
        raise UnansweredError("what `nvidia-smi topo -p2p r` says cannot be read")
    linked = [(x, y, s) for x, y, s in known.p2p if nvlinks(known.link(x, y))]
    pairs = len(known.gpus) * (len(known.gpus) - 1) // 2
    if linked:
        yield Verdict("fail", f"between GPUs with NVLink: {_told(linked)}", "OK")
    elif any(said == "DR" for _, _, said in known.p2p):
        yield Verdict("warn", _told(known.p2p), "OK")
    elif known.p2p and len(known.p2p) < pairs:
        yield Verdict("warn", f"between some GPUs only: {_told(known.p2p)}", "OK between all")
    elif known.p2p:
        yield Verdict(
            "info", f"between no GPUs: {MEANING[known.p2p[0][2]]}; NCCL copies over host memory"
        )
    else:
        yield passed("between all GPUs")


def _told(pairs: list[tuple[str, str, str]] | tuple[tuple[str, str, str], ...]) -> str:
    words = "; ".join(f"{x}-{y} {said} ({MEANING.get(said, said)})" for x, y, said in pairs[:TOLD])
    return words + (f"; and {len(pairs) - TOLD} more" if len(pairs) > TOLD else "")


CHECK = Check(
    title="GPUs can read each other's memory",
    tier="static",
    why="NCCL fails if GPUs with NVLink between them may not reach each other, and is slow where "
    "only some pairs may.",
    fix="take back settings that disable it (NVreg_RegistryDwords); in a virtual machine or with "
    "ACS on see NCCL's troubleshooting page",
    see="nvidia-smi topo -p2p r",
    source="nvidia-smi topo; NCCL 2.30, src/graph/paths.cc",
    ask=nvidia.ask,
    flow=nvidia.where_up(_judge, topo=nvidia.TOPO, p2p=nvidia.P2P),
)
