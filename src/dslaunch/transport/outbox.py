"""Bytes on their way to a node that may read them slowly, or never."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Outbox:
    """Passes bytes on, in their order, as fast as they are taken; the sender never waits.

    What is put in by several threads is not mixed up.
    """

    __slots__ = (
        "_changing",
        "_emptied",
        "_ended",
        "_finishing",
        "_send",
        "_unsent",
        "_waiting",
        "over",
    )

    def __init__(self, send: Callable[[memoryview], int], ended: Callable[[], object]) -> None:
        """`send` passes some bytes on without waiting, and returns how many were taken; 0: none
        can be at the moment, and `go_on` is called later. It raises OSError if none will be taken
        any more. `ended`: called when all was sent after `finish`."""
        self._send, self._ended = send, ended
        self._changing = threading.RLock()
        self._waiting: list[memoryview] = []
        """Few; an empty deque takes 0.6 KiB, which counts with thousands of nodes."""
        self._unsent = 0
        self._finishing = False
        self._emptied: threading.Event | None = None
        """Set when nothing is waiting any more; None: no thread waits for that, which is the rule,
        and an event for each of thousands of nodes takes time and memory."""
        self.over = False
        """Whether nothing is sent any more."""

    @property
    def unsent(self) -> int:
        """How many bytes are waiting."""
        return self._unsent

    def is_stuck(self) -> bool:
        """Return whether bytes are waiting that could not be passed on; what another thread passes
        on just now is none of them."""
        with self._changing:
            return self._unsent > 0

    def put(self, data: bytes) -> None:
        """Send bytes, or keep them until they are taken; without effect after the end."""
        with self._changing:
            if self.over or self._finishing or not data:
                return
            self._waiting.append(memoryview(data))
            self._unsent += len(data)
            if len(self._waiting) == 1:
                self._pass_on()

    def go_on(self) -> None:
        """Send what is waiting."""
        with self._changing:
            self._pass_on()

    def finish(self) -> None:
        """Take no more bytes; call `ended` when all have been sent."""
        with self._changing:
            if not self._finishing:
                self._finishing = True
                self._pass_on()

    def discard(self) -> None:
        """Send nothing any more."""
        with self._changing:
            self.over = True
            self._waiting.clear()
            self._unsent = 0
            self._note_emptied()

    def flush(self, timeout: float) -> bool:
        """Wait until all was sent; return whether it was, in time."""
        with self._changing:
            if self._unsent == 0:
                return not self.over
            self._emptied = emptied = self._emptied or threading.Event()
        return emptied.wait(timeout) and not self.over

    def _pass_on(self) -> None:
        try:
            while self._waiting:
                taken = self._send(self._waiting[0])
                if taken == 0:
                    return
                self._unsent -= taken
                rest = self._waiting[0][taken:]
                if rest:
                    self._waiting[0] = rest
                else:
                    del self._waiting[0]
        except OSError:
            self.discard()
        self._note_emptied()
        if self._finishing and not self.over:
            self.over = True
            self._ended()

    def _note_emptied(self) -> None:
        if self._emptied is not None:
            self._emptied.set()
            self._emptied = None
