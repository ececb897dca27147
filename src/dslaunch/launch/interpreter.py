"""Which Python runs a node's job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.launch.command import Word, at_home

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node


def interpreter(node: Node) -> Word:
    """The node's interpreter as a word of its command line."""
    return at_home(node.python or "python3")
