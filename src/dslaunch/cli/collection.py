"""Python's garbage collection in commands that read the records of many nodes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Let Python look for no garbage: the answers or events of many nodes are a million objects,
    none of them garbage, and to look at them again and again takes a tenth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # else it would look at all of them now
        gc.enable()
