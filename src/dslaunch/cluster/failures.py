"""Fold equal failures of many nodes into one. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from dslaunch.cluster.nodeset import fold
from dslaunch.errors import NodeFailure


class FoldedFailure(Struct, frozen=True):
    """One kind of failure, and the nodes that have it."""

    hosts: tuple[str, ...]
    """In the order of the failures."""
    message: str
    hint: str | None

    def __str__(self) -> str:
        """Return it as one line, `node[01-64]: connection refused on port 22`."""
        return f"{fold(self.hosts)}: {self.message}"


def folded(failures: Iterable[NodeFailure]) -> tuple[FoldedFailure, ...]:
    """Return the failures, folded, in the order of their first nodes.

    Details such as fingerprints are those of the first node that has any.
    """
    groups: dict[tuple[str, str, str], list[NodeFailure]] = {}
    for failure in failures:
        hint = failure.common_hint or failure.hint or ""
        groups.setdefault((failure.kind, failure.common, hint), []).append(failure)
    return tuple(_folded(group) for group in groups.values())


def _folded(group: list[NodeFailure]) -> FoldedFailure:
    first = group[0]
    hosts = tuple(failure.host for failure in group)
    if len(group) == 1:
        return FoldedFailure(hosts, first.message, first.hint)
    example = next((failure for failure in group if failure.detail), None)
    more = f" ({example.host}: {example.detail})" if example else ""
    return FoldedFailure(hosts, first.common + more, first.common_hint or first.hint)
