"""Parse the source of a module, within limits."""

from __future__ import annotations

import ast
from functools import lru_cache

LONGEST = 2**21
"""Maximum length of a module in characters; longer ones are generated."""


@lru_cache(maxsize=8)
def parse(text: str) -> ast.Module | None:
    """Return the syntax tree of a module, which must not be changed.

    None if it is too long, or not valid for this interpreter. Cached, because a start analyzes the
    same script several times.
    """
    if len(text) > LONGEST:
        return None
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def dotted(node: ast.expr) -> str:
    """Return a dotted name such as `os.path.join`; empty for other expressions."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])
