"""Select the nodes of the next attempt after nodes were lost. Pure."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from dslaunch.cluster.model import Allocation, Cluster, Node
from dslaunch.errors import ErrorCode, PlanError


class Replacement(Struct, frozen=True):
    """A lost node, and the spare node that replaces it."""

    lost: str
    spare: str | None = None
    """None: no replacement; the run continues without the node."""


def without(
    cluster: Cluster, allocation: Allocation, lost: Collection[str], min_nodes: int
) -> tuple[Allocation, tuple[Replacement, ...]]:
    """Return the allocation without its lost nodes, and the replacement of each.

    A spare node with enough slots takes a lost node's place in the rank order. Without one the
    following nodes move up. Raises PlanError if fewer than `min_nodes` would remain.
    """
    used = {*allocation.hosts, *lost}
    spares = [node for node in cluster.nodes if node.spare and node.host not in used]
    chosen: list[tuple[Node, tuple[int, ...]]] = []
    replaced = []
    for placement in allocation.placements:
        host, count = placement.node.host, len(placement.slots)
        if host not in lost:
            chosen.append((placement.node, placement.slots))
            continue
        spare = next((node for node in spares if len(node.slots) >= count), None)
        if spare is None:
            replaced.append(Replacement(host))
            continue
        spares.remove(spare)
        chosen.append((spare, spare.slots[:count]))
        replaced.append(Replacement(host, spare.host))
    if len(chosen) < max(min_nodes, 1):
        raise PlanError.coded(ErrorCode.TOO_FEW_NODES, count=len(chosen), wanted=max(min_nodes, 1))
    return Allocation.of(chosen), tuple(replaced)


def enough_without(
    cluster: Cluster, allocation: Allocation, lost: Collection[str], min_nodes: int
) -> bool:
    """Return whether `min_nodes` would remain without the lost nodes."""
    try:
        without(cluster, allocation, lost, min_nodes)
    except PlanError:
        return False
    return True
