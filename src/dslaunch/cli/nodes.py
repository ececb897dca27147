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
    from dslaunch.cluster.model import Placement


def nodes(
    file: ClusterFile = None,
    include: Include = "",
    exclude: Exclude = "",
    nodes: Nodes = None,
    slots: Slots = None,
    label: Label = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Show the nodes that a run would use, with their slots and ranks.

    Example: dslaunch nodes cluster.yaml --include 'node[01-03]:0-3'
    """
    import json as jsonlib

    from dslaunch.cluster.select import select

    cluster = open_cluster(file)
    allocation = select(cluster, selection(include, exclude, nodes, slots, label))
    if json:
        ui.result(jsonlib.dumps([as_data(p) for p in allocation.placements], indent=2))
        return
    groups = [list(same) for _, same in groupby(allocation.placements, key=_alike)]
    head = ("HOST", "SLOTS", "RANKS", "ADDRESS", "LABELS")
    ui.result(ui.table([head, *map(_row, groups)]))


def as_data(placement: Placement) -> dict[str, Any]:
    """One node for programs."""
    node = placement.node
    return {
        "host": node.host,
        "slots": list(placement.slots),
        "ranks": list(placement.ranks),
        "address": node.address,
        "labels": dict(node.labels),
        "spare": node.spare,
    }


def _alike(placement: Placement) -> tuple[object, ...]:
    node = placement.node
    return placement.slots, node.labels, node.spare, node.address is None


def _row(group: list[Placement]) -> tuple[str, ...]:
    from dslaunch.cluster.nodeset import fold

    first, last = group[0], group[-1]
    addresses = [p.node.address for p in group if p.node.address]
    labels = [f"{name}={value}" for name, value in first.node.labels]
    each = " each" if len(group) > 1 else ""
    return (
        fold([p.node.host for p in group]),
        f"{span(first.slots)}{each}",
        span(range(first.first_rank, last.ranks[-1] + 1)),
        fold(addresses) if addresses else "-",
        ",".join([*labels, *(["spare"] if first.node.spare else [])]) or "-",
    )


def span(numbers: range | tuple[int, ...]) -> str:
    """Ascending numbers as `0-3` or `0,2,3`."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers))
