"""Which Python runs a node's job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.launch.command import Var, Word

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node


def interpreter(node: Node) -> Word:
    """The node's interpreter as a word of its command line: `~/` is the node user's home."""
    python = node.python or "python3"
    if python.startswith("~/"):
        return (Var("HOME"), python[1:])
    return python
