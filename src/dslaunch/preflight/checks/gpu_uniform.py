"""Whether all GPUs are of one kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Nodes, Verdict, odd_ones
from dslaunch.preflight.checks import _nvidia as nvidia


def _told(a: Answers) -> tuple[tuple[str, ...], dict[int, str]]:
    """Models with their memory, and the GPUs' firmware.

    Memory differs by some MiB from driver to driver: it is compared in steps.
    """
    gpus = nvidia.gpus(a)
    kinds = {(gpu.text("name") or "GPU", _memory(gpu)) for gpu in gpus}
    models = tuple(f"{name}{memory}" for name, memory in sorted(kinds))
    return models, {gpu.index: gpu.text("vbios_version") or "none" for gpu in gpus}


def _memory(gpu: nvidia.Gpu) -> str:
    total = gpu.number("memory.total")
    return f", {round(total / 4096) * 4} GiB" if total else ""


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    found, untold = nvidia.each_node(nodes, _told)
    yield from untold
    bad: set[str] = set()
    for host, (models, _) in found.items():
        if len(models) > 1:
            bad.add(host)
            words = f"GPUs of several kinds: {' and '.join(models)}"
            yield Verdict("fail", words, "one kind", hosts=(host,))
    kinds = {host: models[0] for host, (models, _) in found.items() if host not in bad}
    for kind, hosts, common, _ in odd_ones(kinds):
        bad |= {*hosts}
        yield Verdict("fail", kind, common, hosts=hosts)
    good = {host: versions for host, (_, versions) in found.items() if host not in bad}
    yield from _firmware(good)


def _firmware(found: dict[str, dict[int, str]]) -> Iterator[Verdict]:
    every = Counter(version for versions in found.values() for version in versions.values())
    if not every:
        return
    common = every.most_common(1)[0][0]
    fine = []
    for host, versions in found.items():
        odd = {index: version for index, version in versions.items() if version != common}
        if odd:
            words = f"GPU {nvidia.listed(odd)}: VBIOS {', '.join(sorted({*odd.values()}))}"
            yield Verdict("warn", words, f"{common} as most", _FLASH, hosts=(host,))
        else:
            fine.append(host)
    if fine:
        yield Verdict("pass", "GPUs of one kind", hosts=tuple(fine))


_FLASH = "update the GPUs' firmware so that all have the same"
CHECK = Check(
    title="all GPUs are of one kind",
    tier="static",
    why="The slowest GPU sets the pace of all, and the smallest memory decides what fits: a node "
    "with other GPUs runs out of memory, or holds the others up.",
    fix="put nodes of one kind into a job: `--label`, `--exclude`",
    see="nvidia-smi --query-gpu=name,memory.total,vbios_version --format=csv",
    source="imbue-ai/cluster-health; GoogleCloudPlatform/cluster-health-scanner",
    ask=nvidia.ask,
    flow=nvidia.asking(),
    compare=_compare,
)
