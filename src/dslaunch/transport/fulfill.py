"""One thread makes what others wait for too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dslaunch.transport.future import Future

Value = TypeVar("Value")


def fulfill(future: Future[Value], make: Callable[[], Value]) -> None:
    """Give the future what `make` returns, or raises: everyone who waits for it gets the same."""
    try:
        future.set_result(make())
    except BaseException as error:  # noqa: BLE001 - raised again by everyone who waits for it
        future.set_exception(error)
