"""One thread for all connections of this process: it reads, writes and keeps the time.

Work that is given to it must not block, since all nodes wait for it.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from msgspec import Struct

from dslaunch import log

Work = Callable[[], object]
Item = TypeVar("Item")
SENT_AT_ONCE = 128
"""Nodes that are sent something before what has arrived is handled; see `paced`."""
LONGEST_ERROR = 500
"""Characters of an unexpected error that are logged."""
_log = log.Log(__name__)


class Timer:
    """Work that is done later, in the loop's thread, unless it is canceled before."""

    __slots__ = ("_work",)

    def __init__(self, work: Work) -> None:
        self._work: Work | None = work

    def cancel(self) -> None:
        """Do not do the work. Does nothing if it has begun."""
        self._work = None

    def run(self) -> None:
        """Do the work, unless it was canceled."""
        if self._work is not None:
            self._work()


class _Watched(Struct, frozen=True):
    """What to do when a file descriptor is readable or writable."""

    reading: Work | None
    writing: Work | None


class Loop:
    """Does work when file descriptors are ready, when its time has come, or soon."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._soon: deque[Work] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._awake, self._waking = os.pipe()
        os.set_blocking(self._awake, False)
        os.set_blocking(self._waking, False)
        self._selector.register(self._awake, selectors.EVENT_READ, _Watched(self._drain, None))
        self._woken = False
        """Whether there is a byte in the pipe, or will be at once."""
        self._thread = threading.Thread(target=self._run, name="connections", daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether the caller is in the loop's thread."""
        return threading.get_ident() == self._thread.ident

    def call(self, work: Work) -> None:
        """Do work soon. May be called from any thread."""
        self._soon.append(work)
        if not self._woken and not self.is_here:
            self._woken = True
            with contextlib.suppress(BlockingIOError):
                os.write(self._waking, b"x")

    def call_when_handled(self, work: Work) -> None:
        """Do work when everything has been handled that has arrived by now.

        What is ready now is handled in this turn, or in the next one. May be called from any
        thread.
        """
        self.call(lambda: self.call(work))

    def call_later(self, seconds: float, work: Work) -> Timer:
        """Do work after some seconds. May be called from any thread."""
        timer = Timer(work)
        entry = (time.monotonic() + seconds, next(self._numbers), timer)
        self.call(lambda: heapq.heappush(self._timers, entry))
        return timer

    def watch(self, fd: int, reading: Work | None = None, writing: Work | None = None) -> None:
        """Do work whenever `fd` can be read or written; replaces what was said before.

        Only in the loop's thread, as `forget`.
        """
        events = selectors.EVENT_READ if reading is not None else 0
        events |= selectors.EVENT_WRITE if writing is not None else 0
        known = fd in self._selector.get_map()
        if known and events:
            self._selector.modify(fd, events, _Watched(reading, writing))
        elif events:
            self._selector.register(fd, events, _Watched(reading, writing))
        elif known:
            self._selector.unregister(fd)

    def forget(self, fd: int) -> None:
        """Watch `fd` no more; call it before `fd` is closed."""
        self.watch(fd)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while True:
            for key, events in self._selector.select(self._pause()):
                # work that was done just now may have changed what is watched
                if self._selector.get_map().get(key.fd) is key:
                    watched: _Watched = key.data
                    if events & selectors.EVENT_READ and watched.reading is not None:
                        _do(watched.reading)
                    if events & selectors.EVENT_WRITE and watched.writing is not None:
                        _do(watched.writing)
            for _ in range(len(self._soon)):
                _do(self._soon.popleft())
            self._run_timers()

    def _pause(self) -> float | None:
        """Return for how many seconds there is nothing to do; None: until something happens."""
        if self._soon:
            return 0.0
        if self._timers:
            return max(0.0, self._timers[0][0] - time.monotonic())
        return None

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, timer = heapq.heappop(self._timers)
            _do(timer.run)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._awake, 4096)
        # then the mark: what was added before it is done in this turn
        self._woken = False


def _do(work: Work) -> None:
    """Do work; what fails must not end the loop, which all nodes need."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - see above
        _log.info("work-failed", error=repr(error)[:LONGEST_ERROR])


_starting = threading.Lock()


def shared() -> Loop:
    """Return the loop of this process."""
    with _starting:
        return _shared()


@functools.cache
def _shared() -> Loop:
    return Loop()


def paced(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the nodes to which the caller sends something, or what belongs to them; in between,
    wait until everything is handled that has arrived.

    A message without an answer takes 4 KiB, which counts with thousands of nodes. Slow nodes do not
    delay others: nothing of them has arrived. Never in the loop's thread.
    """
    for number, item in enumerate(items, 1):
        yield item
        if number % SENT_AT_ONCE == 0:
            handled = threading.Event()
            shared().call_when_handled(handled.set)
            handled.wait()
