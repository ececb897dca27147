"""What a Python script imports, by its source alone. Pure: nothing of it is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from dslaunch.pysource.parse import dotted, parse

USUAL = frozenset(
    [
        "accelerate",
        "datasets",
        "deepspeed",
        "lightning",
        "megatron",
        "numpy",
        "pandas",
        "peft",
        "pytorch_lightning",
        "torch",
        "transformers",
        "trl",
        "wandb",
    ]
)
"""Modules that come from packages, also in scripts that change where Python looks for modules."""
_SEARCH_PATHS = frozenset(["sys.path", "sys.meta_path", "sys.path_hooks", "site.addsitedir"])
"""By these a script changes where Python looks for modules."""


@dataclass(frozen=True, slots=True)
class Imports:
    """Top-level modules that a script imports, sorted."""

    certain: tuple[str, ...] = ()
    """Those without which it ends: imported when it starts, on every way through it."""
    possible: tuple[str, ...] = ()
    """Those of functions and branches. What stands in a `try` can be missing, and is in neither."""
    read: bool = False
    """Whether there was a source to read."""


def imports_of(source: str, beside: frozenset[str] = frozenset()) -> Imports:
    """Return what a script imports; `beside` are modules that lie next to it, or come with it."""
    tree = parse(source)
    if tree is None:
        return Imports()
    certain = {name for statement in tree.body for name in _named(statement)}
    every = {name for statement in _outside_of_try(tree) for name in _named(statement)}
    if _installs(tree):
        certain = set()
    if _changes_search_path(tree):
        certain, every = certain & USUAL, every & USUAL
    return Imports(
        certain=tuple(sorted(certain - beside)),
        possible=tuple(sorted(every - certain - beside)),
        read=True,
    )


def _named(statement: ast.AST) -> Iterator[str]:
    """The top-level modules of an import statement; relative imports name none."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            yield alias.name.partition(".")[0]
    elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
        yield statement.module.partition(".")[0]


def _outside_of_try(tree: ast.AST) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [child for child in ast.iter_child_nodes(node) if not _guarded(child)]


def _guarded(node: ast.AST) -> bool:
    """Whether what stands in a statement may fail: `try`, and what only type checkers read."""
    checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    return checking or isinstance(node, ast.Try | ast.TryStar)


def _changes_search_path(tree: ast.AST) -> bool:
    """Whether a script may change where Python looks for modules."""
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return any(dotted(node) in _SEARCH_PATHS for node in attributes)


def _installs(tree: ast.AST) -> bool:
    """Whether a script may install packages before it imports them."""
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    texts = (value for value in constants if isinstance(value, str))
    return any("pip" in text.split() or "pip install" in text for text in texts)
