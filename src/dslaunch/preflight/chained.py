"""Work that begins when other work is done, without a thread that waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

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
    result: Future[Second] = Future()

    def go_on(finished: Future[First]) -> None:
        try:
            error = finished.exception()
            if error is not None:
                raise explained(error)
            begin(finished.result()).add_done_callback(pass_on)
        except BaseException as failure:  # noqa: BLE001 - raised again by `result`
            result.set_exception(failure)

    def pass_on(finished: Future[Second]) -> None:
        error = finished.exception()
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(finished.result())

    first.add_done_callback(go_on)
    return result
