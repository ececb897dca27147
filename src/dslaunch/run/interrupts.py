"""Ctrl-C, TERM and a closed terminal, counted instead of thrown into whatever was going on."""

from __future__ import annotations

import signal
import time
from concurrent.futures import Future, wait
from types import FrameType, TracebackType
from typing import Any, Self

from dslaunch.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK = 0.1


class Noted:
    """While entered, a wish of the user's to end is noted, and nothing else becomes of it."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        raise NotImplementedError


class Interrupts(Noted):
    """Counts the user's wishes to end. The first asks, the second insists."""

    def __init__(self, notice: signal.Signals | None = None) -> None:
        super().__init__()
        self.count = 0
        self.notice = notice
        """A signal that is meant for the ranks, such as USR1 before a time limit; None: none."""
        self.notices = 0
        """How often it came."""

    def __enter__(self) -> Self:
        super().__enter__()
        # a launcher that sleeps is one that is gone: its nodes would end the run
        self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        if self.notice is not None:
            self._before[self.notice] = signal.signal(self.notice, self._note_notice)
        return self

    def stop(self) -> None:
        """Count a wish to end that came by no signal."""
        self.count += 1

    def wait(self, futures: list[Future[Any]], timeout: float) -> None:
        """Wait until all are done, or for `timeout` seconds. Raises Interrupted."""
        deadline = time.monotonic() + timeout
        while True:
            self.check()
            left = deadline - time.monotonic()
            if left <= 0 or not wait(futures, min(_LOOK, left)).not_done:
                return

    def check(self) -> None:
        """Raise Interrupted if the user wants to end."""
        if self.count:
            raise Interrupted("interrupted before the start")

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.stop()

    def _note_notice(self, number: int, frame: FrameType | None) -> None:
        self.notices += 1
