"""Import a library without a module that it can do without."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def left_out(name: str) -> Iterator[None]:
    """Let imports of a module fail inside, unless it is imported already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment] # `import` raises ImportError then
    try:
        yield
    finally:
        del sys.modules[name]
