"""Work that begins when other work is done, without a thread that waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from dslaunch.transport.future import Future, done_with

First = TypeVar("First")
Second = TypeVar("Second")


DONE = done_with(None)
"""What is done already."""


def _unchanged(error: BaseException) -> BaseException:
    return error


def then(
    first: Future[First],
    begin: Callable[[First], Future[Second]],
    explained: Callable[[BaseException], BaseException] = _unchanged,
) -> Future[Second]:
    """Return the result of what `begin` makes of the result of `first`.

    `begin` is called in the thread in which `first` is done, so it must not wait. An exception of
    either is that of the returned future; that of `first` as `explained` returns it.
    """
    chained = _Chained(begin, explained)
    first.add_done_callback(chained.go_on)
    return chained.result


class _Chained(Generic[First, Second]):
    """Work that begins when other work is done: small, since each of thousands of nodes has
    some."""

    __slots__ = ("_begin", "_explained", "result")

    def __init__(
        self,
        begin: Callable[[First], Future[Second]],
        explained: Callable[[BaseException], BaseException],
    ) -> None:
        self._begin, self._explained = begin, explained
        self.result: Future[Second] = Future()

    def go_on(self, finished: Future[First]) -> None:
        """Begin the work, unless the work before has failed."""
        try:
            error = finished.exception()
            if error is not None:
                raise self._explained(error)
            self._begin(finished.result()).add_done_callback(self.pass_on)
        except BaseException as failure:  # noqa: BLE001 - raised again by `result`
            self.result.set_exception(failure)

    def pass_on(self, finished: Future[Second]) -> None:
        """Take the result of the work for that of both."""
        error = finished.exception()
        if error is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(finished.result())
