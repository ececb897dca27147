"""The Python interpreter of the job on a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.launch.command import Word, at_home

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node


def interpreter(node: Node) -> Word:
    """Return the interpreter of a node as a word of its command line."""
    return at_home(node.python or "python3")
