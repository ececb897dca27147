"""Whether GPUs of one kind can run equally fast."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dslaunch.preflight.check import Check, Nodes, Verdict
from dslaunch.preflight.checks import _nvidia as nvidia


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    """Each GPU with most of its name: kinds are compared elsewhere."""
    found = {host: nvidia.gpus(a) for host, a in nvidia.up(nodes).items()}
    every = Counter((g.name, g.number("clocks.max.sm")) for gpus in found.values() for g in gpus)
    usual: dict[str, float | None] = {}
    for (name, clock), _ in every.most_common():
        usual.setdefault(name, clock)
    fine = []
    for host, gpus in found.items():
        odd = [gpu for gpu in gpus if gpu.number("clocks.max.sm") != usual[gpu.name]]
        if odd:
            clock, common = odd[0].number("clocks.max.sm"), usual[odd[0].name]
            words = f"GPU {nvidia.listed(g.index for g in odd)}: at most {clock or 0:.0f} MHz"
            yield Verdict("warn", words, f"{common or 0:.0f} MHz as most", hosts=(host,))
        else:
            fine.append(host)
    if fine:
        yield Verdict("pass", "equal highest clocks", hosts=tuple(fine))


CHECK = Check(
    title="GPUs of one kind have the same highest clock",
    tier="static",
    why="The slowest GPU sets the pace of all: a lower highest clock is a straggler that no "
    "error tells of.",
    fix="`nvidia-smi -rgc` takes back locked clocks; compare the firmware of the GPUs",
    see="nvidia-smi --query-gpu=index,clocks.max.sm --format=csv",
    source="facebookresearch/gcm, clock policy",
    ask=nvidia.ask,
    then=nvidia.then(),
    compare=_compare,
)
