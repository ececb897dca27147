"""A value that is there later, such as the answer of a node, and threads that wait for it.

A run of thousands of nodes has several of them for each node. Those of `concurrent.futures` have
their own lock, condition and queue of waiters, which take 1.4 KiB and ten times as long to make.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar, cast

from dslaunch import log

Value = TypeVar("Value")
_ValueNow = TypeVar("_ValueNow", covariant=True)
LONGEST_ERROR = 500
"""Characters of an unexpected error that are logged."""
_changing = threading.Lock()
"""Of all futures: it is held for a moment."""
_log = log.Log(__name__)


class Awaited(Protocol):
    """What can be waited for: a future of this module, or one of `concurrent.futures`."""

    def add_done_callback(self, call: Callable[[Any], object], /) -> None:
        """Call this once it is done."""


class Future(Generic[Value]):
    """A value, or an exception, that one thread sets once and others wait for."""

    __slots__ = ("_callbacks", "_error", "_is_done", "_value")

    def __init__(self) -> None:
        self._is_done = False
        self._value: Value | None = None
        self._error: BaseException | None = None
        self._callbacks: tuple[Callable[[Future[Value]], object], ...] = ()

    def done(self) -> bool:
        """Return whether it has a value or an exception."""
        return self._is_done

    def result(self, timeout: float | None = None) -> Value:
        """Wait for the value, at most `timeout` seconds, and return it.

        Raises TimeoutError, and the exception that was set.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return cast("Value", self._value)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until it is done, at most `timeout` seconds; return the exception, if one was set.

        Raises TimeoutError.
        """
        if not self._is_done and not wait_for([self], timeout):
            raise TimeoutError
        return self._error

    def set_result(self, value: Value) -> None:
        """Set the value. Does nothing if it is done."""
        self._finish(value, None)

    def set_exception(self, error: BaseException) -> None:
        """Set an exception. Does nothing if it is done."""
        self._finish(None, error)

    def add_done_callback(self, call: Callable[[Future[Value]], object], /) -> None:
        """Call this when it is done, in the thread that sets it; at once if it is done already."""
        with _changing:
            is_later = not self._is_done
            if is_later:
                self._callbacks = (*self._callbacks, call)
        if not is_later:
            self._tell(call)

    def _finish(self, value: Value | None, error: BaseException | None) -> None:
        with _changing:
            if self._is_done:
                return
            self._value, self._error = value, error
            self._is_done = True
            callbacks, self._callbacks = self._callbacks, ()
        for call in callbacks:
            self._tell(call)

    def _tell(self, call: Callable[[Future[Value]], object]) -> None:
        """Call one of those that wait; what fails there must not be the end of the others."""
        try:
            call(self)
        except Exception as error:  # noqa: BLE001 - see above
            _log.info("callback-failed", error=repr(error)[:LONGEST_ERROR])


class Countdown:
    """Counts futures that are not done."""

    def __init__(self, futures: Iterable[Awaited]) -> None:
        waited_for = list(futures)
        self.left = len(waited_for)
        self._counting = threading.Lock()
        self._over = threading.Lock()
        """Held until all are done. An event has a lock too, and takes 1.4 KiB more."""
        if waited_for:
            self._over.acquire()
        for future in waited_for:
            future.add_done_callback(self._count)

    def wait(self, timeout: float | None) -> bool:
        """Wait until all are done, at most `timeout` seconds; return whether they are."""
        are_done = self._over.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        if are_done:
            self._over.release()  # for others that wait
        return are_done

    def _count(self, future: object) -> None:
        with self._counting:
            self.left -= 1
            is_last = self.left == 0
        if is_last:
            self._over.release()


def wait_for(futures: Iterable[Awaited], timeout: float | None) -> bool:
    """Wait until all are done, at most `timeout` seconds; return whether they are."""
    return Countdown(futures).wait(timeout)


def done_with(value: Value) -> Future[Value]:
    """Return a future that has its value already."""
    future: Future[Value] = Future()
    future.set_result(value)
    return future
