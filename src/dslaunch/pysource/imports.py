"""Find the imports of a Python script from its source. Pure: the script is not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from msgspec import Struct

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
"""Modules of packages, most often installed ones, also in scripts that change the module search
path: those may have some in separate directories, as Megatron-LM does."""
_SEARCH_PATHS = frozenset(["sys.path", "sys.meta_path", "sys.path_hooks", "site.addsitedir"])
"""Names by which a script changes the module search path."""


class Imports(Struct, frozen=True):
    """Top-level modules that a script imports, sorted."""

    certain: tuple[str, ...] = ()
    """Required modules: imported unconditionally at the start."""
    possible: tuple[str, ...] = ()
    """Modules imported in functions and branches. Imports in a `try` may fail and are in
    neither."""
    read: bool = False
    """Whether the source could be read."""


def imports_of(source: str, beside: frozenset[str] = frozenset()) -> Imports:
    """Return the imports of a script, except `beside`: modules in its directory, or shipped with
    it."""
    tree = parse(source)
    if tree is None:
        return Imports()
    certain = {name for statement in tree.body for name in _named(statement)}
    every = {name for statement in _outside_of_try(tree) for name in _named(statement)}
    if _installs(tree):
        certain = set()
    if _changes_search_path(tree):
        certain, every = set(), every & USUAL
    return Imports(
        certain=tuple(sorted(certain - beside)),
        possible=tuple(sorted(every - certain - beside)),
        read=True,
    )


def _named(statement: ast.AST) -> Iterator[str]:
    """Return the top-level modules of an import statement; relative imports name none."""
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
    """Return whether imports in a statement may fail: in `try`, or for type checkers only."""
    checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    return checking or isinstance(node, ast.Try | ast.TryStar)


def _changes_search_path(tree: ast.AST) -> bool:
    """Return whether a script may change the module search path."""
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return any(dotted(node) in _SEARCH_PATHS for node in attributes)


def _installs(tree: ast.AST) -> bool:
    """Return whether a script may install packages before it imports them."""
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    texts = (value for value in constants if isinstance(value, str))
    return any("pip" in text.split() or "pip install" in text for text in texts)
