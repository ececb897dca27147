"""Notice a program that reads nothing of what is sent to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from dslaunch.transport import loop

if TYPE_CHECKING:
    from dslaunch.transport.base import Channel

WRITE_TIMEOUT = 10.0
"""Seconds in which a node must read something of what is sent."""


class WritingWatch:
    """Writes to a channel, and reports a program that takes nothing of what waits to be sent."""

    __slots__ = (
        "_changing",
        "_channel",
        "_is_watching",
        "_on_stuck",
        "_taken_before",
        "_timeout",
        "_written",
    )

    def __init__(
        self,
        channel: Channel,
        on_stuck: Callable[[Channel], object],
        *,
        written: int = 0,
        timeout: float = WRITE_TIMEOUT,
    ) -> None:
        """`on_stuck`: called in the loop's thread when the channel has taken nothing for `timeout`
        seconds. `written`: bytes that the channel was given before."""
        self._channel = channel
        self._on_stuck = on_stuck
        self._timeout = timeout
        self._changing = threading.Lock()
        """So that what another thread is writing just now is not taken for stuck."""
        self._written = written
        """Bytes that the channel was given in all."""
        self._is_watching = False
        self._taken_before = 0
        """Bytes that the channel had taken when the timeout began."""
        self._watch()

    def write(self, data: bytes) -> None:
        """Send data to the program. May be called in any thread."""
        with self._changing:
            self._written += len(data)
            self._channel.write(data)
        self._watch()

    def _watch(self) -> None:
        """Look after the timeout, if something is waiting, whether some of it was taken."""
        with self._changing:
            unsent = self._channel.unsent
            if self._is_watching or not unsent:
                return
            self._is_watching = True
            self._taken_before = self._written - unsent
        loop.shared().call_later(self._timeout, self._look)

    def _look(self) -> None:
        with self._changing:
            self._is_watching = False
            unsent = self._channel.unsent
            taken = self._written - unsent
        if unsent and taken <= self._taken_before:
            self._on_stuck(self._channel)
        else:
            self._watch()
