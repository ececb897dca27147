"""Which nodes and slots a run uses: DeepSpeed's include/exclude grammar, done strictly. Pure.

`HOST[:SLOT[,SLOT]...][@HOST...]`, with folded hosts (`node[01-03]`) and ranges of slots (`0-3`).
Other than in DeepSpeed (0.15.2 to 0.19.5) a bare host means all its slots, a slot that a host
does not have is an error, and so is an empty result. The result is in the cluster file's order.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from dslaunch.cluster.model import Allocation, Cluster, Node
from dslaunch.cluster.nodeset import expand, fold, numbers
from dslaunch.errors import SelectionError

Slots = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """What the command line asks for; nothing given means every node that is no spare."""

    include: str = ""
    exclude: str = ""
    nodes: int | None = None
    """Only the first so many nodes of what is left."""
    slots: int | None = None
    """Only the first so many slots of each node."""
    labels: tuple[str, ...] = ()
    """`KEY=VALUE`; a node must have them all."""


def select(cluster: Cluster, selection: Selection = Selection()) -> Allocation:
    """Choose nodes and slots. Raises SelectionError saying what is wrong and what there is."""
    if selection.include and selection.exclude:
        raise SelectionError("--include and --exclude exclude each other")
    known = {node.host: node for node in cluster.nodes}
    if selection.include:
        wanted = parse_filter(selection.include, known, "--include")
        chosen = [(n, wanted[n.host]) for n in cluster.nodes if n.host in wanted]
    else:
        unwanted = parse_filter(selection.exclude, known, "--exclude") if selection.exclude else {}
        chosen = [(n, _without(n, unwanted)) for n in cluster.nodes if not n.spare]
    chosen = [(node, slots) for node, slots in chosen if slots and _has(node, selection.labels)]
    if not chosen:
        raise SelectionError("the selection is empty: no node is left", hint=_what_exists(cluster))
    return Allocation.of(_cut(chosen, selection))


def parse_filter(text: str, known: dict[str, Node], option: str) -> dict[str, Slots]:
    """Read a filter: host -> slots, those of one host united. Raises SelectionError."""
    found: dict[str, set[int]] = {}
    for part in text.split("@"):
        names, colon, slots = part.strip().partition(":")
        try:
            hosts = expand(names.strip())
            indexes = numbers(slots.replace(" ", "")) if colon else None
        except ValueError as error:
            raise SelectionError(
                f"{option} {text!r}: {error}", hint="write for example node[01-03]:0-3@node07:0,2"
            ) from None
        for host in hosts:
            node = known.get(host)
            if node is None:
                raise SelectionError(
                    f"{option}: there is no node {host!r}", hint=_near(host, known)
                )
            found.setdefault(host, set()).update(_checked(node, indexes, option))
    return {host: tuple(sorted(slots)) for host, slots in found.items()}


def _checked(node: Node, indexes: Slots | None, option: str) -> Slots:
    if indexes is None:
        return node.slots
    missing = [str(index) for index in indexes if index not in node.slots]
    if missing:
        have = ",".join(map(str, node.slots))
        raise SelectionError(
            f"{option}: {node.host} has no slot {', '.join(missing)}", hint=f"it has {have}"
        )
    return indexes


def _without(node: Node, unwanted: dict[str, Slots]) -> Slots:
    return tuple(slot for slot in node.slots if slot not in unwanted.get(node.host, ()))


def _has(node: Node, labels: tuple[str, ...]) -> bool:
    own = {f"{name}={value}" for name, value in node.labels}
    return own.issuperset(labels)


def _cut(chosen: list[tuple[Node, Slots]], selection: Selection) -> list[tuple[Node, Slots]]:
    """Keep the first nodes and slots. Raises SelectionError if there are not so many."""
    if selection.nodes is not None and selection.nodes > len(chosen):
        raise SelectionError(
            f"--nodes {selection.nodes}: only {len(chosen)} nodes are there",
            hint=f"they are {fold([node.host for node, _ in chosen])}",
        )
    count = selection.slots
    if count is not None:
        small = [node.host for node, slots in chosen if len(slots) < count]
        if small:
            raise SelectionError(
                f"--slots {count}: fewer on {fold(small)}", hint="leave them out: -e"
            )
    return [(node, slots[:count]) for node, slots in chosen[: selection.nodes]]


def _near(host: str, known: dict[str, Node]) -> str:
    close = difflib.get_close_matches(host, list(known)[:10_000], 1)
    return f"did you mean {close[0]!r}?" if close else f"there are {fold(known)}"


def _what_exists(cluster: Cluster) -> str:
    labels = sorted({f"{name}={value}" for node in cluster.nodes for name, value in node.labels})
    with_labels = f", with labels {', '.join(labels)}" if labels else ""
    return f"there are {fold([node.host for node in cluster.nodes])}{with_labels}"
