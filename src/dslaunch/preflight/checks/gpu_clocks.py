"""Whether GPUs of one kind can run equally fast."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Nodes, Verdict
from dslaunch.preflight.checks import _nvidia as nvidia


def _clocks(a: Answers) -> list[tuple[int, str, float]]:
    """Of the GPUs that tell it: their highest clock in MHz."""
    told = [(gpu.index, gpu.name, gpu.number("clocks.max.sm")) for gpu in nvidia.gpus(a)]
    return [(index, name, clock) for index, name, clock in told if clock is not None]


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    """Each GPU with most of its name: kinds are compared elsewhere."""
    found, untold = nvidia.each_node(nodes, _clocks)
    yield from untold
    every = Counter((name, clock) for gpus in found.values() for _, name, clock in gpus)
    usual: dict[str, float] = {}
    for (name, clock), _ in every.most_common():
        usual.setdefault(name, clock)
    fine = []
    for host, gpus in found.items():
        odd = [gpu for gpu in gpus if gpu[2] != usual[gpu[1]]]
        if odd:
            _, name, clock = odd[0]
            words = f"GPU {nvidia.listed(index for index, _, _ in odd)}: at most {clock:.0f} MHz"
            yield Verdict("warn", words, f"{usual[name]:.0f} MHz as most", hosts=(host,))
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
