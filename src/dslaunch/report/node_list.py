"""Names of nodes on a line that a person reads. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dslaunch.cluster.nodeset import fold
from dslaunch.plural import counted

MOST_LISTED = 300
"""Characters of the names of nodes on a line; of more, the first and the number of the others. JSON
has all of them."""
FIRST_LISTED = 8
"""Names of nodes that are shown of a longer list."""


def listed_nodes(hosts: Sequence[str]) -> str:
    """Return the nodes folded, or the first of them and how many more there are."""
    folded = fold(hosts)
    if len(folded) <= MOST_LISTED:
        return folded
    more = len(hosts) - FIRST_LISTED
    return f"{fold(hosts[:FIRST_LISTED])} and {counted(more, 'more node')}"
