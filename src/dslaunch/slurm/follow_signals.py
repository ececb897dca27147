"""Ctrl-C and a closed terminal while a job is followed: the first cancels the job, the other
leaves."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

from dslaunch.run.interrupts import Noted


class FollowSignals(Noted):
    """Notes signals. The first Ctrl-C cancels the job, the second leaves."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        super().__init__()
        self.cancel = cancel
        self.asked = 0
        self.away = False
        self._done = 0

    @property
    def leave(self) -> bool:
        """Return whether to stop following; cancel the job first if requested."""
        if self.asked > self._done == 0:
            self._done = 1
            self.cancel()
        return self.away or self.asked > 1

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self.asked += 1
        else:
            self.away = True
