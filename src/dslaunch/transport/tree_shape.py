"""Decide which nodes of a tree log in to which others. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

LEAST_PARENTS = 2
"""Of nodes that are divided among parents: one that is lost leaves another."""


class TreeShape(Struct, frozen=True):
    """The parents of nodes. Every chain of parents ends at a node that the launcher logs in to."""

    parents: dict[str, str | None]
    """The node that logs in to each node; None: the launcher does."""
    inner: tuple[str, ...]
    """The nodes that have children, in the nodes' order."""

    @property
    def first_inner(self) -> tuple[str, ...]:
        """Return the nodes that have children and that the launcher logs in to."""
        return tuple(host for host in self.inner if self.parents[host] is None)

    def level(self, host: str) -> int:
        """Return how many nodes are between the launcher and a node."""
        count = 0
        parent = self.parents[host]
        while parent is not None:
            count += 1
            parent = self.parents[parent]
        return count


def tree_shape(hosts: Sequence[str], fan_out: int) -> TreeShape:
    """Return a tree in which the launcher and every node have at most `fan_out` children.

    There are as few levels as the fan-out allows, and as few parents: each is one login and one
    program more, on its node and for the launcher. Neighbors in the cluster file, such as the nodes
    of a rack, share a parent, which comes before them. The parents of a level have about the same
    number of nodes below them.
    """
    parents: dict[str, str | None] = dict.fromkeys(hosts)
    _place(hosts, fan_out, None, parents)
    with_children = set(parents.values())
    inner = tuple(host for host in parents if host in with_children)
    return TreeShape(parents, inner)


def _place(
    hosts: Sequence[str], fan_out: int, parent: str | None, parents: dict[str, str | None]
) -> None:
    """Give hosts their parents, all of which are `parent` or below it."""
    children = min(fan_out, len(hosts))
    deeper = len(hosts) - children
    needed = math.ceil(deeper / fan_out)
    inner_children = min(fan_out, max(needed, LEAST_PARENTS), deeper)
    start = 0
    for number in range(children):
        child, start = hosts[start], start + 1
        parents[child] = parent
        if number < inner_children:
            below = (deeper + number) // inner_children  # all of them add up to `deeper`
            _place(hosts[start : start + below], fan_out, child, parents)
            start += below
