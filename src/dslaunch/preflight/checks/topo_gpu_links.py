"""Whether GPUs that are made for it have NVLink with each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dslaunch.preflight.check import Answers, Check, UnansweredError, Verdict, passed, skipped
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.checks import _wiring as wiring

if TYPE_CHECKING:
    from dslaunch.topology.model import Topology

TOLD = 3


def _judge(a: Answers) -> Iterator[Verdict]:
    from dslaunch.topology.layout import summary

    known = wiring.topology(a)
    if known.status == "none":
        raise UnansweredError(known.trouble.message if known.trouble else "there is no matrix")
    missing = wiring.pairs_without_nvlink(a, known)
    if missing:
        words = "; ".join(f"{one}-{two} is {link}" for one, two, link in missing[:TOLD])
        more = f"; and {len(missing) - TOLD} more" if len(missing) > TOLD else ""
        yield Verdict("fail", words + more, _usual(known))
    elif known.status == "partial":
        raise UnansweredError("the matrix was read in part: " + "; ".join(known.notes[:TOLD]))
    elif len(known.gpus) < 2:
        yield skipped("one GPU")
    else:
        yield passed(summary(known))


def _usual(known: Topology) -> str:
    from dslaunch.topology.model import nvlinks

    codes = sorted({link for _, _, link in known.links if nvlinks(link)})
    return f"{codes[-1]} between all GPUs" if codes else "NVLink between all GPUs"


CHECK = Check(
    title="GPUs that are made for it have NVLink with each other",
    tier="static",
    why="NCCL goes through host memory between two GPUs without NVLink, and its ring is as slow as "
    "its slowest hop: tens of times slower than NVLink.",
    fix="see `nvidia-smi nvlink -s` and the fabric manager; reboot; have the board looked at",
    see="nvidia-smi topo -m",
    source="nvidia-smi topo; NCCL 2.30, src/graph/paths.cc",
    ask=nvidia.ask,
    flow=nvidia.where_up(_judge, topo=nvidia.TOPO),
)
