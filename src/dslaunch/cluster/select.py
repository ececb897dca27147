"""Which nodes and slots a run uses: DeepSpeed's include/exclude grammar, done strictly. Pure.

`HOST[:SLOT[,SLOT]...][@HOST...]`, with folded hosts (`node[01-03]`) and ranges of slots (`0-3`).
Other than in DeepSpeed (0.15.2 to 0.19.5) a bare host means all its slots, a slot that a host
does not have is an error, and so is an empty result. The result is in the cluster file's order.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from dslaunch.cluster.model import Allocation, Cluster, Node
from dslaunch.cluster.nodeset import expand, fold, numbers
from dslaunch.errors import SelectionError
from dslaunch.plural import counted
from dslaunch.terminal import shortened

Slots = tuple[int, ...]
Chosen = list[tuple[Node, Slots]]

_COMPARED = 10_000
"""How many names are looked at for a suggestion."""
_SHOWN = 300
"""How many characters of a list of names are shown."""


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
    """Choose nodes and slots, and number them in the file's order.

    Raises SelectionError saying what is wrong, what there is and what may have been meant.
    """
    if selection.include and selection.exclude:
        raise SelectionError(
            "--include and --exclude exclude each other", hint="name what is to be used in one"
        )
    known = {node.host: node for node in cluster.nodes}
    if selection.include:
        wanted = parse_filter(selection.include, known, "--include")
        chosen = [(n, wanted[n.host]) for n in cluster.nodes if n.host in wanted]
    else:
        unwanted = parse_filter(selection.exclude, known, "--exclude") if selection.exclude else {}
        chosen = [(n, _without(n, unwanted)) for n in cluster.nodes if not n.spare]
    chosen = _labelled([(node, slots) for node, slots in chosen if slots], cluster, selection)
    if not chosen:
        raise SelectionError("the selection is empty: no slot is left", hint=_there_are(known))
    return Allocation.of(_first(chosen, selection))


def check_min_nodes(wanted: int | None, allocation: Allocation) -> None:
    """Raise SelectionError where a run is to go on with more nodes than it starts with."""
    count = len(allocation.placements)
    if wanted is not None and wanted > count:
        raise SelectionError(
            f"--min-nodes {wanted}: only {counted(count, 'node')} selected: "
            f"{_folded(list(allocation.hosts))}",
            hint=f"give at most {count}, or select more nodes",
        )


def parse_filter(text: str, known: dict[str, Node], option: str) -> dict[str, Slots]:
    """Read a filter: host -> its slots, ascending, those of several mentions united.

    Raises SelectionError, also for a host that is named both as a whole and by slots: DeepSpeed
    (0.19.8) takes only the slots there, which is not what `a@a:1` says.
    """
    found: dict[str, set[int]] = {}
    whole: dict[str, bool] = {}
    for host, indexes in _mentions(text, known, option):
        if whole.setdefault(host, indexes is None) != (indexes is None):
            raise SelectionError(
                f"{option}: {host} is named as a whole and by slots", hint="keep one of the two"
            )
        found.setdefault(host, set()).update(_checked(known[host], indexes, option))
    return {host: tuple(sorted(slots)) for host, slots in found.items()}


def _mentions(text: str, known: dict[str, Node], option: str) -> Iterator[tuple[str, Slots | None]]:
    """Give each host that is named with its slots, None for all. Every host is known."""
    mentions = [_mention(part, text, option) for part in text.split("@")]
    unknown = list(dict.fromkeys(h for hosts, _ in mentions for h in hosts if h not in known))
    if unknown:
        what = "node is" if len(unknown) == 1 else "nodes are"
        raise SelectionError(
            f"{option}: no {what} named {_folded(unknown)}", hint=_near(unknown[0], known)
        )
    for hosts, indexes in mentions:
        for host in hosts:
            yield host, indexes


def _mention(part: str, text: str, option: str) -> tuple[tuple[str, ...], Slots | None]:
    names, colon, slots = part.strip().partition(":")
    try:
        return expand(names.strip()), numbers(slots.replace(" ", "")) if colon else None
    except ValueError as error:
        raise SelectionError(
            f"{option} {shortened(text)}: {error}",
            hint="write for example node[01-03]:0-3@node07:0,2",
        ) from None


def _checked(node: Node, indexes: Slots | None, option: str) -> Slots:
    if indexes is None:
        return node.slots
    missing = sorted(set(indexes).difference(node.slots))
    if missing:
        what = shortened(",".join(map(str, missing))).strip("'")
        have = ",".join(map(str, node.slots))
        raise SelectionError(f"{option}: {node.host} has no slot {what}", hint=f"it has {have}")
    return indexes


def _without(node: Node, unwanted: dict[str, Slots]) -> Slots:
    gone = unwanted.get(node.host, ())
    return tuple(slot for slot in node.slots if slot not in gone)


def _labelled(chosen: Chosen, cluster: Cluster, selection: Selection) -> Chosen:
    """Keep the nodes that have all labels. Raises SelectionError for one that no node has."""
    if not selection.labels:
        return chosen
    there = list(dict.fromkeys(f"{k}={v}" for node in cluster.nodes for k, v in node.labels))
    for label in selection.labels:
        if label not in there:
            close = difflib.get_close_matches(label, there[:_COMPARED], 1)
            labels = ", ".join(there) or "none; write KEY=VALUE"
            raise SelectionError(
                f"--label {label}: no node has it",
                hint=f"did you mean {close[0]}?" if close else f"there are {labels[:_SHOWN]}",
            )
    return [
        (node, slots)
        for node, slots in chosen
        if {f"{k}={v}" for k, v in node.labels}.issuperset(selection.labels)
    ]


def _first(chosen: Chosen, selection: Selection) -> Chosen:
    """Keep the first nodes and slots. Raises SelectionError if there are not so many."""
    nodes, count = selection.nodes, selection.slots
    for option, number in (("--nodes", nodes), ("--slots", count)):
        if number is not None and number < 1:
            raise SelectionError(f"{option} {number}: at least one is needed")
    if nodes is not None and nodes > len(chosen):
        hosts = _folded([node.host for node, _ in chosen])
        raise SelectionError(
            f"--nodes {nodes}: there are only {len(chosen)}: {hosts}",
            hint=f"ask for at most {len(chosen)}; spares must be included by name",
        )
    chosen = chosen[:nodes]
    if count is not None:
        small = [node.host for node, slots in chosen if len(slots) < count]
        if small:
            least = min(len(slots) for _, slots in chosen)
            raise SelectionError(
                f"--slots {count}: there are fewer on {_folded(small)}",
                hint=f"ask for at most {least}, or leave them out with --exclude",
            )
    return [(node, slots[:count]) for node, slots in chosen]


def _near(host: str, known: dict[str, Node]) -> str:
    close = difflib.get_close_matches(host, islice(known, _COMPARED), 1)
    return f"did you mean {close[0]}?" if close else _there_are(known)


def _there_are(known: dict[str, Node]) -> str:
    return f"there are {_folded(list(known))}"


def _folded(hosts: list[str]) -> str:
    text = fold(hosts)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(hosts):,} names)"
