"""The event loop of a program on a node. Its thread takes over work from others."""

from __future__ import annotations

import contextlib
import os
import selectors
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Callable, Deque

    Callback = Callable[[], object]

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
PIECE = 4096


class EventLoop:
    """Calls back when a descriptor is ready, and for work that another thread hands over."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._handed_over: Deque[Callback] = deque()
        woken, self.wake_fd = os.pipe()
        """What is written to `wake_fd` ends a wait; writing does not block."""
        for fd in (woken, self.wake_fd):
            os.set_blocking(fd, False)
        self.watch(woken, lambda: self._take_over(woken))

    def turn(self, timeout: float) -> None:
        """Wait at most so many seconds, and call back for all that is ready."""
        for key, _ in self._selector.select(timeout):
            watched = self._selector.get_map().get(key.fd)
            if watched is not None:  # else it was ignored in this turn
                watched.data()

    def watch(self, fd: int, callback: Callback, events: int = READ) -> None:
        """Call `callback` whenever `fd` is ready for these events; replaces an earlier one.

        It is also called if `fd` was ready for what it replaces, so it must not block.
        """
        if fd in self._selector.get_map():
            self._selector.modify(fd, events, callback)
        else:
            self._selector.register(fd, events, callback)

    def ignore(self, fd: int) -> None:
        """Undo `watch`; call it before `fd` is closed. Safe to call twice."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def hand_over(self, work: Callback) -> None:
        """Have the thread of the loop do work; for other threads."""
        self._handed_over.append(work)
        with contextlib.suppress(BlockingIOError):  # so full that the loop is woken anyway
            os.write(self.wake_fd, b"w")

    def _take_over(self, woken: int) -> None:
        os.read(woken, PIECE)
        while self._handed_over:
            self._handed_over.popleft()()
