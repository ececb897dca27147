"""`dslaunch nodes`: which nodes, slots and ranks a selection gives."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dslaunch.cli import ui
from dslaunch.cli.options import (
    ClusterFile,
    Exclude,
    Include,
    Label,
    Nodes,
    Slots,
    open_cluster,
    selection,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dslaunch.cluster.model import Allocation, Cluster, Node

Row = tuple["Node", tuple[int, ...], range]
"""A node with the slots and ranks that a run has on it; a spare that waits has no ranks."""
HEAD = ("HOST", "SLOTS", "RANKS", "ADDRESS", "LABELS")


def nodes(
    file: ClusterFile = None,
    include: Include = "",
    exclude: Exclude = "",
    nodes: Nodes = None,
    slots: Slots = None,
    label: Label = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Show which nodes, slots and ranks a run would have.

    Spares that wait are shown too.

    Example: dslaunch nodes cluster.yaml --include 'node[01-03]:0-3'
    """
    from dslaunch.cluster.select import select

    cluster = open_cluster(file)
    chosen = rows(cluster, select(cluster, selection(include, exclude, nodes, slots, label)))
    if json:
        ui.data([as_data(row) for row in chosen])
    else:
        groups = [list(same) for _, same in groupby(chosen, key=_alike)]
        ui.result(ui.table([HEAD, *map(_cells, groups)], ui.width()))


def rows(cluster: Cluster, allocation: Allocation) -> list[Row]:
    """The nodes in rank order, then the spares that wait."""
    used = set(allocation.hosts)
    waiting = [node for node in cluster.nodes if node.spare and node.host not in used]
    return [
        *((p.node, p.slots, p.ranks) for p in allocation.placements),
        *((node, node.slots, range(0)) for node in waiting),
    ]


def as_data(row: Row) -> dict[str, Any]:
    """One node for programs."""
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
    """One line of the table for nodes that follow each other and are alike."""
    from dslaunch.cluster.nodeset import fold

    node, slots, ranks = group[0]
    hosts = [each.host for each, _, _ in group]
    addresses = [each.address for each, _, _ in group if each.address]
    labels = [f"{name}={value}" for name, value in node.labels]
    each = " each" if len(group) > 1 else ""
    return (
        fold(hosts),
        f"{span(slots)}{each}",
        span(range(ranks.start, group[-1][2].stop)) if ranks else "-",
        fold(addresses) if addresses else "-",
        ",".join([*labels, *(["spare"] if node.spare else [])]) or "-",
    )


def span(numbers: Sequence[int]) -> str:
    """Ascending numbers as `0-3` or `0,2,3`."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers))
