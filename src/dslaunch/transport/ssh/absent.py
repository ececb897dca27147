"""Import a package without a dependency that it can do without."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, MutableMapping
from typing import Any, cast


@contextlib.contextmanager
def absent(module: str) -> Iterator[None]:
    """Let imports of a module fail inside the block, as if it were not installed.

    A module that has been imported before stays as it is.
    """
    # an entry of None makes the import fail (Python's reference, "The module cache")
    modules = cast("MutableMapping[str, Any]", sys.modules)
    if module in modules:
        yield
        return
    modules[module] = None
    try:
        yield
    finally:
        del modules[module]
