"""What nodes have, as they answered preflight: to hold a training's config against. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dslaunch.deepspeed.hardware import DirectoryFacts, NodeHardware, hardware_of
from dslaunch.preflight.check import NodeAnswers, Question, UnansweredError
from dslaunch.preflight.checks import _infiniband as infiniband
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.checks import _wiring as wiring
from dslaunch.preflight.checks import net_bandwidth
from dslaunch.preflight.checks._machine import (
    NETWORK_TYPES,
    is_missing,
    memory,
    mounts,
    path_question,
    paths,
)
from dslaunch.preflight.checks.table_fs_nvme import MOUNTS, NO_DISK
from dslaunch.preflight.judge import node_answers
from dslaunch.preflight.unanswered import UnansweredReason
from dslaunch.topology.model import nvlinks

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation
    from dslaunch.preflight.recording import Recording
    from dslaunch.protocol.survey import PathStatus


def hardware(allocation: Allocation, facts: Recording) -> tuple[NodeHardware, ...]:
    """Return what each node of an allocation has: its answers, else the values in the cluster
    file."""
    asked = node_answers(facts)
    return tuple(
        _answered(node, asked[node.host]) if node.host in asked else node
        for node in hardware_of(allocation)
    )


def network(facts: Recording) -> float | None:
    """Bytes per second between the two nodes with the slowest link, by TCP.

    None: preflight did not measure (that is in its tier `deep`), or the nodes have RDMA ports that
    are up, past which TCP says nothing of what NCCL reaches.
    """
    nodes = node_answers(facts)
    if not nodes or any(map(_has_rdma, nodes.values())):
        return None
    rates, _ = net_bandwidth.measured(nodes)
    return min(rates.values(), default=None)


def node_local(facts: Recording) -> int | None:
    """Bytes free on the nodes' own disks, of the node with least; None: some node has no disk
    there, or was not asked."""
    path = facts.scope.cluster.storage.node_local
    if not path:
        return None
    free = [_free(a, path) for a in node_answers(facts).values()]
    known = [each for each in free if each is not None]
    return min(known) if known and len(known) == len(free) else None


def _free(a: NodeAnswers, path: str) -> int | None:
    """Bytes free in a directory, if that is on a disk of the node's own."""
    found = a.found(path_question(path))
    if found is None:
        return None
    kind = _type(found)
    return int(found["free"]) if _shared(kind) is False and kind not in NO_DISK else None


def _type(found: PathStatus) -> str | None:
    """The type of the file system that a path is on."""
    return found["mount"]["type"] if found["mount"] else None


def _has_rdma(a: NodeAnswers) -> bool:
    return a.answered(wiring.PORTS) and infiniband.in_use(a)


def _answered(node: NodeHardware, a: NodeAnswers) -> NodeHardware:
    gpus = _gpus(a)
    names = dict.fromkeys(gpu.name for gpu in gpus if gpu.fields.get("name"))
    return replace(
        node,
        gpus=len(gpus) or node.gpus,
        gpu=", ".join(names) or node.gpu,
        gpu_memory=_gpu_memory(gpus) or node.gpu_memory,
        nvlink=_nvlink(a),
        memory=_memory(a) or node.memory,
        directories=tuple(_directories(a)),
    )


def _gpus(a: NodeAnswers) -> tuple[nvidia.NvidiaGpu, ...]:
    try:
        return nvidia.gpus(a)
    except UnansweredError:
        return ()


def _gpu_memory(gpus: tuple[nvidia.NvidiaGpu, ...]) -> int | None:
    """Return the memory of the smallest GPU in bytes; nvidia-smi reports MiB."""
    try:
        told = [gpu.number("memory.total") for gpu in gpus]
    except UnansweredError:
        return None
    return min((int(size * 2**20) for size in told if size), default=None)


def _nvlink(a: NodeAnswers) -> bool | None:
    """Whether GPUs have NVLink with each other; None: not known, or there is but one."""
    try:
        known = wiring.topology(a)
    except UnansweredError:
        return None
    if any(nvlinks(link) for _, _, link in known.links):
        return True
    return False if known.status == "ok" and len(known.gpus) > 1 else None


def _memory(a: NodeAnswers) -> int | None:
    try:
        return memory(a).get("MemTotal")
    except UnansweredError:
        return None


# ---------------------------------------------------------------- directories


def _directories(a: NodeAnswers) -> Iterator[DirectoryFacts]:
    """Those that preflight asks of, and mount points, below which others may be."""
    for path in paths(a.scope):
        found = a.found(path_question(path))
        if found is not None:
            kind = _type(found)
            yield DirectoryFacts(path, True, kind, _shared(kind), _direct(a, path))
        elif is_missing(a, path):
            yield DirectoryFacts(path, False)
    text = (a.found(MOUNTS) or {}).get(MOUNTS.argument[0], "")
    for point, kind in mounts(text):
        # below the root there may be links to elsewhere
        if point != "/":
            yield DirectoryFacts(point, True, kind, _shared(kind))


def _shared(kind: str | None) -> bool | None:
    if kind is None or kind.startswith("fuse"):
        return True if kind in NETWORK_TYPES else None
    return kind in NETWORK_TYPES


def _direct(a: NodeAnswers, path: str) -> bool | None:
    """Whether a file was written past the page cache; asked where ZeRO-Infinity is a need."""
    question = Question("write", {"path": path, "direct": True})
    if a.answered(question):
        return True
    return False if a.reason(question) is UnansweredReason.INVALID_ARGUMENT else None
