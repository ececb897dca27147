"""Something that happens once, and that threads can wait for."""

from __future__ import annotations

import threading

_changing = threading.Lock()
"""Of all latches: it is held for a moment."""


class Latch:
    """An event that is never cleared. `threading.Event` takes 1.4 KiB, which counts where each of
    thousands of nodes has some; here it is made for those that a thread waits for."""

    __slots__ = ("_awaited", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._awaited: threading.Event | None = None

    def set(self) -> None:
        """Let it have happened. Safe to call twice."""
        with _changing:
            self.is_set = True
            awaited = self._awaited
        if awaited is not None:
            awaited.set()

    def wait(self, timeout: float) -> bool:
        """Wait until it has happened, at most `timeout` seconds; return whether it has."""
        with _changing:
            if self.is_set:
                return True
            awaited = self._awaited = self._awaited or threading.Event()
        return awaited.wait(timeout)
