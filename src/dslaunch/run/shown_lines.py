"""The lines that a run shows, as an iterator for programs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Full, Queue
from typing import TYPE_CHECKING

from dslaunch.run.view import Callbacks

if TYPE_CHECKING:
    from dslaunch.run.events import Line
    from dslaunch.run.view import View

MOST_WAITING = 1000
"""Lines that wait for the reader; then the run is not read on."""
LOOK = 0.2
"""Seconds between two looks whether the reader is still there."""
Show = Callable[["View", Callable[[], bool]], None]
"""Shows lines to a view, until there are no more or the function says that it is enough."""


class _ReaderLeft(Exception):
    """The lines are no longer read."""


def shown_lines(show: Show) -> Iterator[Line]:
    """Yield the lines that `show` shows, as they come, and raise what it raises.

    `show` runs in its own thread. It ends when the iterator is closed or collected.
    """
    arrived: Queue[Line | None] = Queue(MOST_WAITING)
    reader_left = threading.Event()
    errors: list[BaseException] = []

    def hand_over(line: Line | None) -> None:
        while not reader_left.is_set():
            try:
                arrived.put(line, timeout=LOOK)
            except Full:
                continue
            return
        raise _ReaderLeft

    def work() -> None:
        try:
            show(Callbacks(on_line=hand_over), reader_left.is_set)
        except _ReaderLeft:
            return
        except BaseException as error:  # noqa: BLE001 - it is raised in the reader's thread
            errors.append(error)
        try:
            hand_over(None)
        except _ReaderLeft:
            return

    # a daemon: an iterator that is left open must not keep the program from ending
    thread = threading.Thread(target=work, name="dslaunch-logs", daemon=True)
    thread.start()
    try:
        while (line := arrived.get()) is not None:
            yield line
    finally:
        reader_left.set()
    thread.join()
    if errors:
        raise errors[0]
