"""Ctrl-C and a closed terminal while a job is followed: the one cancels, the other only leaves."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Wishes:
    """While entered, notes what the user wants. The first Ctrl-C asks, the second insists."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.cancel = cancel
        self.asked = 0
        self.away = False
        self._done = 0
        self._before: list[Any] = []

    @property
    def leave(self) -> bool:
        """Whether to stop following; cancels the job first when that was asked for."""
        if self.asked > self._done == 0:
            self._done = 1
            self.cancel()
        return self.away or self.asked > 1

    def __enter__(self) -> Wishes:
        self._before = [signal.signal(number, self._note) for number in _SIGNALS]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in zip(_SIGNALS, self._before, strict=True):
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self.asked += 1
        else:
            self.away = True
