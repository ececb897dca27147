"""A module's source as a tree, within bounds."""

from __future__ import annotations

import ast
from functools import lru_cache

LONGEST = 2**21
"""Characters of a module that are read; a longer one was generated."""


@lru_cache(maxsize=8)
def parse(text: str) -> ast.Module | None:
    """Return the tree of a module's source, which is not to be changed.

    None for what is too long, or no Python that this interpreter can parse. A start asks several
    things of the same script, which is parsed once.
    """
    if len(text) > LONGEST:
        return None
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def dotted(node: ast.expr) -> str:
    """Return a name with its dots, as `os.path.join`; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])
