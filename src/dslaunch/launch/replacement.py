"""Who takes part in the next attempt of a run that lost nodes. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dslaunch.cluster.model import Allocation, Cluster, Node
from dslaunch.errors import ErrorCode, PlanError


@dataclass(frozen=True, slots=True)
class Replacement:
    """What was done about a lost node."""

    lost: str
    spare: str | None = None
    """Takes its place; None: the node is left out."""


def without(
    cluster: Cluster, allocation: Allocation, lost: Collection[str], min_nodes: int
) -> tuple[Allocation, tuple[Replacement, ...]]:
    """The allocation less its lost nodes, and what was done about each.

    A spare with as many slots takes a lost node's place in the rank order; without one the
    others move up. Raises PlanError when fewer than `min_nodes` would be left.
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
        raise PlanError(
            f"{len(chosen)} nodes are left, at least {min_nodes} are wanted",
            hint="add `spare: true` nodes to the cluster file, or lower --min-nodes",
            code=ErrorCode.TOO_FEW_NODES,
        )
    return Allocation.of(chosen), tuple(replaced)


def enough_without(
    cluster: Cluster, allocation: Allocation, lost: Collection[str], min_nodes: int
) -> bool:
    """Whether as many nodes would be left without these."""
    try:
        without(cluster, allocation, lost, min_nodes)
    except PlanError:
        return False
    return True
