"""`dslaunch nodes`: the nodes, slots and ranks of a selection."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from dslaunch.cli import ui
from dslaunch.cli.json_option import JsonList
from dslaunch.cli.options import ClusterFile, open_cluster
from dslaunch.cli.run_options import SelectionOptions
from dslaunch.cluster.nodeset import fold
from dslaunch.plural import number_range

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation, Cluster, Node

Row = tuple["Node", tuple[int, ...], range]
"""A node with its slots and ranks; an unused spare has no ranks."""
HEAD = ("HOST", "SLOTS", "RANKS", "ADDRESS", "LABELS")


def nodes(
    *,
    file: ClusterFile = None,
    which: SelectionOptions,
    json: JsonList = False,
) -> None:
    """Show the nodes, slots and ranks of a selection.

    Unused spares are listed without ranks.

    Example: dslaunch nodes cluster.yaml --include 'node[01-03]:0-3'
    """
    cluster = open_cluster(file)
    chosen = rows(cluster, which.of(cluster))
    if json:
        ui.data([as_data(row) for row in chosen])
    else:
        groups = [list(same) for _, same in groupby(chosen, key=_alike)]
        ui.result(ui.table([HEAD, *map(_cells, groups)], ui.width()))


def rows(cluster: Cluster, allocation: Allocation) -> list[Row]:
    """Return the nodes in rank order, then the unused spares."""
    used = set(allocation.hosts)
    waiting = [node for node in cluster.nodes if node.spare and node.host not in used]
    return [
        *((p.node, p.slots, p.ranks) for p in allocation.placements),
        *((node, node.slots, range(0)) for node in waiting),
    ]


def as_data(row: Row) -> dict[str, Any]:
    """Return one node as JSON data."""
    node, slots, ranks = row
    return {
        "host": node.host,
        "slots": list(slots),
        "ranks": list(ranks),
        "address": node.address,
        "labels": dict(node.labels),
        "spare": node.spare,
    }


def _alike(row: Row) -> tuple[object, ...]:
    node, slots, ranks = row
    return slots, bool(ranks), node.labels, node.spare, node.address is None


def _cells(group: list[Row]) -> tuple[str, ...]:
    """Return one row of the table for consecutive equal nodes."""
    node, slots, ranks = group[0]
    hosts = [each.host for each, _, _ in group]
    addresses = [each.address for each, _, _ in group if each.address]
    labels = [f"{name}={value}" for name, value in node.labels]
    each = " each" if len(group) > 1 else ""
    return (
        fold(hosts),
        f"{number_range(slots)}{each}",
        number_range(range(ranks.start, group[-1][2].stop)) if ranks else "-",
        fold(addresses) if addresses else "-",
        ",".join([*labels, *(["spare"] if node.spare else [])]) or "-",
    )
