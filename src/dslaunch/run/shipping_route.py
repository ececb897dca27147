"""Decide which node gets shipped files from which other node. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dslaunch.transport.tree_shape import tree_shape

PIECE = 256 * 1024
"""Bytes of an archive that a node hands on at a time."""
LEAST_HANDED_ON = 32 * 2**20
"""Bytes for all nodes together. Less than this the launcher sends faster than nodes log in to each
other."""


def senders(hosts: Sequence[str], size: int) -> dict[str, str | None]:
    """Return the node that sends an archive of `size` bytes to each node; None: the launcher does.

    A node passes each piece on when it has arrived. In a chain, every link carries the archive
    once: the last node has it when the launcher has sent it, and one piece more for each node.
    Where that is more than the archive itself, two nodes are sent to by each: twice the archive,
    and a few pieces.
    """
    if size * len(hosts) < LEAST_HANDED_ON:
        return dict.fromkeys(hosts)
    if len(hosts) * PIECE <= size:
        return dict(zip(hosts, (None, *hosts), strict=False))
    return tree_shape(hosts, fan_out=2).parents
