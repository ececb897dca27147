"""Decide which nodes of a tree log in to which others. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


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

    The nodes are divided into `fan_out` groups of equal size, as far as possible: neighbors in the
    cluster file, such as the nodes of a rack, share a parent. The first node of a group is the
    parent of the others, which are divided in the same way. So there are as few levels as the
    fan-out allows, and all parents of a level have about the same number of children.
    """
    parents: dict[str, str | None] = dict.fromkeys(hosts)
    _divide(hosts, fan_out, None, parents)
    with_children = set(parents.values())
    inner = tuple(host for host in parents if host in with_children)
    return TreeShape(parents, inner)


def _divide(
    hosts: Sequence[str], fan_out: int, parent: str | None, parents: dict[str, str | None]
) -> None:
    groups = min(fan_out, len(hosts))
    for number in range(groups):
        first = number * len(hosts) // groups
        end = (number + 1) * len(hosts) // groups
        parents[hosts[first]] = parent
        _divide(hosts[first + 1 : end], fan_out, hosts[first], parents)
