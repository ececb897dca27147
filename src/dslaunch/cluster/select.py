"""Select the nodes and slots of a run, with DeepSpeed's include/exclude syntax. Pure.

`HOST[:SLOT[,SLOT]...][@HOST...]`, with folded hosts (`node[01-03]`) and ranges of slots (`0-3`).
Unlike in DeepSpeed (0.15.2 to 0.19.5), a bare host means all its slots. An unknown slot or an
empty result is an error. The result has the order of the cluster file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from dslaunch.cluster.model import Allocation, Cluster, Node
from dslaunch.cluster.nodeset import InvalidNodeSet, expand, fold, numbers
from dslaunch.errors import ErrorCode, SelectionError
from dslaunch.terminal import cut
from dslaunch.texts import closest

Slots = tuple[int, ...]
Chosen = list[tuple[Node, Slots]]

_SHOWN = 300
"""Maximum length of a list of names in messages, in characters."""
_SLOTS_SHOWN = 60
"""Maximum length of a list of slots in messages, in characters."""


class Selection(Struct, frozen=True):
    """The nodes and slots to use; default: all nodes except spare nodes, with all slots."""

    include: str = ""
    exclude: str = ""
    nodes: int | None = None
    """Use only the first N of the selected nodes."""
    slots: int | None = None
    """Use only the first N slots of each node."""
    labels: tuple[str, ...] = ()
    """`KEY=VALUE`; a node must have all of them."""


def select(cluster: Cluster, selection: Selection = Selection()) -> Allocation:
    """Return the selected nodes and slots, with ranks in the cluster file's order.

    Raises SelectionError, with the available or probably meant names.
    """
    if selection.include and selection.exclude:
        raise SelectionError.coded(ErrorCode.INCLUDE_AND_EXCLUDE)
    known = {node.host: node for node in cluster.nodes}
    if selection.include:
        wanted = parse_filter(selection.include, known, "--include")
        chosen = [(n, wanted[n.host]) for n in cluster.nodes if n.host in wanted]
    else:
        unwanted = parse_filter(selection.exclude, known, "--exclude") if selection.exclude else {}
        chosen = [(n, _without(n, unwanted)) for n in cluster.nodes if not n.spare]
    chosen = _labeled([(node, slots) for node, slots in chosen if slots], cluster, selection)
    if not chosen:
        raise SelectionError.coded(ErrorCode.EMPTY_SELECTION, available=_folded(list(known)))
    return Allocation.of(_first(chosen, selection))


def check_min_nodes(wanted: int | None, allocation: Allocation) -> None:
    """Raise SelectionError if --min-nodes is more than the run starts with."""
    count = len(allocation.placements)
    if wanted is not None and wanted > count:
        raise SelectionError.coded(
            ErrorCode.MIN_NODES_ABOVE_SELECTED,
            wanted=wanted,
            count=count,
            hosts=_folded(list(allocation.hosts)),
        )


def parse_filter(text: str, known: dict[str, Node], option: str) -> dict[str, Slots]:
    """Return the slots of each host in a filter, ascending, merged if a host is listed twice.

    Raises SelectionError, also for a host that is listed both with and without slots: of `a@a:1`
    DeepSpeed (0.19.8) uses slot 1 only.
    """
    found: dict[str, set[int]] = {}
    whole: dict[str, bool] = {}
    for host, indexes in _mentions(text, known, option):
        if whole.setdefault(host, indexes is None) != (indexes is None):
            raise SelectionError.coded(ErrorCode.NODE_AND_SLOTS, option=option, host=host)
        found.setdefault(host, set()).update(_checked(known[host], indexes, option))
    return {host: tuple(sorted(slots)) for host, slots in found.items()}


def _mentions(text: str, known: dict[str, Node], option: str) -> Iterator[tuple[str, Slots | None]]:
    """Yield each listed host with its slots, None for all. Raises SelectionError."""
    mentions = [_mention(part, text, option) for part in text.split("@")]
    unknown = list(dict.fromkeys(h for hosts, _ in mentions for h in hosts if h not in known))
    if unknown:
        raise SelectionError.coded(
            ErrorCode.UNKNOWN_NODE,
            option=option,
            hosts=_folded(unknown),
            **_meant(unknown[0], known, _folded(list(known))),
        )
    for hosts, indexes in mentions:
        for host in hosts:
            yield host, indexes


def _mention(part: str, text: str, option: str) -> tuple[tuple[str, ...], Slots | None]:
    names, colon, slots = part.strip().partition(":")
    try:
        return expand(names.strip()), numbers(slots.replace(" ", "")) if colon else None
    except InvalidNodeSet as error:
        raise SelectionError.coded(
            ErrorCode.INVALID_FILTER,
            option=option,
            text=text,
            error=str(error),
            mistake=error.mistake.code.value,
        ) from None


def _checked(node: Node, indexes: Slots | None, option: str) -> Slots:
    if indexes is None:
        return node.slots
    missing = sorted(set(indexes).difference(node.slots))
    if missing:
        raise SelectionError.coded(
            ErrorCode.UNKNOWN_SLOT,
            option=option,
            host=node.host,
            missing=_listed(missing),
            slots=_listed(node.slots),
        )
    return indexes


def _without(node: Node, unwanted: dict[str, Slots]) -> Slots:
    gone = unwanted.get(node.host, ())
    return tuple(slot for slot in node.slots if slot not in gone)


def _labeled(chosen: Chosen, cluster: Cluster, selection: Selection) -> Chosen:
    """Keep the nodes that have all labels. Raises SelectionError for a label that no node has."""
    if not selection.labels:
        return chosen
    there = list(dict.fromkeys(f"{k}={v}" for node in cluster.nodes for k, v in node.labels))
    for label in selection.labels:
        if label not in there:
            labels = ", ".join(there)[:_SHOWN] or "none; write KEY=VALUE"
            raise SelectionError.coded(
                ErrorCode.UNKNOWN_LABEL,
                label=label,
                **_meant(label, there, labels),
            )
    return [
        (node, slots)
        for node, slots in chosen
        if {f"{k}={v}" for k, v in node.labels}.issuperset(selection.labels)
    ]


def _first(chosen: Chosen, selection: Selection) -> Chosen:
    """Keep the first nodes and slots. Raises SelectionError if there are too few."""
    nodes, count = selection.nodes, selection.slots
    for option, number in (("--nodes", nodes), ("--slots", count)):
        if number is not None and number < 1:
            raise SelectionError.coded(ErrorCode.COUNT_BELOW_ONE, option=option, count=number)
    if nodes is not None and nodes > len(chosen):
        hosts = _folded([node.host for node, _ in chosen])
        raise SelectionError.coded(
            ErrorCode.TOO_FEW_SELECTED, wanted=nodes, count=len(chosen), hosts=hosts
        )
    chosen = chosen[:nodes]
    if count is not None:
        small = [node.host for node, slots in chosen if len(slots) < count]
        if small:
            least = min(len(slots) for _, slots in chosen)
            raise SelectionError.coded(
                ErrorCode.TOO_FEW_SLOTS, wanted=count, hosts=_folded(small), least=least
            )
    return [(node, slots[:count]) for node, slots in chosen]


def _meant(word: str, known: Iterable[str], available: str) -> dict[str, str]:
    """Return the name that was probably meant, or all available ones, as parameters."""
    meant = closest(word, known)
    return {"meant": meant} if meant else {"available": available}


def _listed(slots: Iterable[int]) -> str:
    return cut(",".join(map(str, slots)), _SLOTS_SHOWN)


def _folded(hosts: list[str]) -> str:
    text = fold(hosts)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(hosts):,} names)"
