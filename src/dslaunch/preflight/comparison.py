"""Comparisons of the nodes: values that should be the same on all, of a node or of its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec import Struct

from dslaunch.plural import counted
from dslaunch.preflight.alike import by_host
from dslaunch.preflight.check import Finding, Level, NodeAnswers, Nodes, UnansweredError

V = TypeVar("V", bound=Hashable)
R = TypeVar("R")
Compare = Callable[[Nodes], Iterator[Finding]]


class Deviation(Struct, Generic[V], frozen=True):
    """Nodes whose value is not the most common one."""

    value: V
    hosts: tuple[str, ...]
    common: V
    count: int
    """How many nodes have the most common value."""

    def as_on(self, common: str) -> str:
        """Return what was expected of them."""
        return f"{common}, as on {counted(self.count, 'node')}"


def deviations(values: Mapping[str, V]) -> Iterator[Deviation[V]]:
    """Return whose value differs from the most common one; of equally common ones, the first."""
    if not values:
        return
    groups: dict[V, list[str]] = {}
    for host, value in values.items():
        groups.setdefault(value, []).append(host)
    common = max(groups, key=lambda value: len(groups[value]))
    for value, hosts in groups.items():
        if value != common:
            yield Deviation(value, tuple(hosts), common, len(groups[common]))


def deviations_by_name(
    values: Mapping[str, Mapping[str, V]],
) -> Iterator[tuple[str, Deviation[V | None]]]:
    """Compare values that have a name on every node, name by name; None: a node has none."""
    for name in dict.fromkeys(name for of in values.values() for name in of):
        for odd in deviations({host: of.get(name) for host, of in values.items()}):
            yield name, odd


def alike(
    value: Callable[[NodeAnswers], str | None],
    *,
    found: str = "{value}",
    expected: str = "{common}, as on {nodes}",
    level: Level | Callable[[str, str], Level] = "warn",
    whole: bool = False,
) -> Compare:
    """Return a comparison of one value per node with the most common one.

    `value`: None or empty: the node has none. It may raise UnansweredError.
    `found`, `expected`: texts with `{value}`, `{common}`, `{count}` nodes, `{nodes}` as words.
    `level`: of a finding, or how it follows from the value and the most common one.
    `whole`: the comparison is all of its check, so it also says which nodes have no answer, and
    that the others are well.
    """

    def compare(nodes: Nodes) -> Iterator[Finding]:
        values: dict[str, str] = {}
        for host, own in read_of_nodes(nodes, value):
            if isinstance(own, UnansweredError):
                if whole:
                    yield Finding("unknown", str(own), hosts=(host,))
            elif own:
                values[host] = own
        fine = dict(values)
        for odd in deviations(values):
            texts: dict[str, object] = {
                "value": odd.value,
                "common": odd.common,
                "count": odd.count,
            }
            texts["nodes"] = counted(odd.count, "node")
            severity = level(odd.value, odd.common) if callable(level) else level
            words = found.format(**texts)
            yield Finding(severity, words, expected.format(**texts), hosts=odd.hosts)
            for host in odd.hosts:
                del fine[host]
        if whole and fine:
            common = next(iter(fine.values()))
            yield Finding("pass", found.format(value=common), hosts=tuple(fine))

    return compare


def read_of_nodes(
    nodes: Nodes, read: Callable[[NodeAnswers], R]
) -> Iterator[tuple[str, R | UnansweredError]]:
    """Yield each node with what is read of its answers, or why there is none. Nodes with equal
    answers are read once."""
    yield from by_host(nodes, partial(_answered, read)).items()


def read_of_answering(nodes: Nodes, read: Callable[[NodeAnswers], R]) -> dict[str, R]:
    """Return what is read of the answers of each node, without the nodes that have none."""
    return {
        host: own
        for host, own in read_of_nodes(nodes, read)
        if not isinstance(own, UnansweredError)
    }


def _answered(read: Callable[[NodeAnswers], R], a: NodeAnswers) -> R | UnansweredError:
    try:
        return read(a)
    except UnansweredError as why:
        # with its traceback it would keep the answers of all nodes until garbage is collected
        return why.with_traceback(None)


class NodePart(Struct, frozen=True):
    """A part of a node, such as a GPU or a port."""

    name: Any
    kind: str
    """Parts of the same kind should have the same value, on all nodes."""
    value: Any
    shown: str
    """The value as a text."""


def parts_alike(
    parts: Callable[[NodeAnswers], list[NodePart]],
    *,
    named: Callable[[list[Any]], str],
    expected: str,
    fine: str,
    level: Level = "warn",
    fix: str = "",
    lower: bool = False,
    untold: bool = False,
) -> Compare:
    """Return a comparison of each part with the most common value of its kind.

    `expected`: a text with `{usual}`, the most common value. `named`: some parts as a text.
    `lower`: only lower values are odd, and of equally common ones the highest is usual.
    `untold`: nodes without an answer are named, as they are if no other check does.
    """

    def compare(nodes: Nodes) -> Iterator[Finding]:
        found: dict[str, list[NodePart]] = {}
        for host, own in read_of_nodes(nodes, parts):
            if not isinstance(own, UnansweredError):
                found[host] = own
            elif untold:
                yield Finding("unknown", str(own), hosts=(host,))
        usual = _usual(found, lower)
        well = []
        for host, of in found.items():
            odd: dict[tuple[str, Any], list[Any]] = {}
            for part in of:
                common = usual[part.kind]
                if part.value < common if lower else part.value != common:
                    odd.setdefault((part.shown, common), []).append(part.name)
            for (shown, common), names in odd.items():
                words = f"{named(names)}: {shown}"
                yield Finding(level, words, expected.format(usual=common), fix, hosts=(host,))
            if of and not odd:
                well.append(host)
        yield Finding("pass", fine, hosts=tuple(well))

    return compare


def _usual(found: Mapping[str, list[NodePart]], lower: bool) -> dict[str, Any]:
    """The most common value of each kind."""
    counts = Counter((part.kind, part.value) for of in found.values() for part in of).most_common()
    if lower:
        counts.sort(key=lambda each: (-each[1], -each[0][1]))
    usual: dict[str, Any] = {}
    for (kind, value), _ in counts:
        usual.setdefault(kind, value)
    return usual
