"""Count Ctrl-C, TERM and a closed terminal, and keep USR1 and USR2 for the ranks: no signal raises
an exception anywhere."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from dslaunch.errors import Interrupted
from dslaunch.transport.future import Awaited, Countdown

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are meant for the ranks."""
_POLL = 0.1
"""Seconds between two checks for signals."""
Until = Callable[[], bool]
"""Returns whether it is enough."""


def never() -> bool:
    """Return that it is not enough yet."""
    return False


class Noted:
    """While entered, calls `_note` for signals by which the user asks to stop."""

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
    """Counts the user's requests to stop. The first stops gracefully, the second at once."""

    def __init__(
        self,
        notice: signal.Signals | None = None,
        *,
        until: Until = never,
    ) -> None:
        super().__init__()
        self.count = 0
        self.until = until
        """Returns whether another process has requested the stop."""
        self.notice = notice
        """The forwarded signal after which each rank saves and ends by itself, such as USR1 before
        a time limit; None: the training continues after every signal."""
        self.notices = 0
        """How often it was received."""
        self.received: deque[int] = deque()
        """Signals that are to be forwarded to the ranks."""

    def __enter__(self) -> Self:
        super().__enter__()
        for number in {*FORWARDED, *filter(None, [self.notice])}:
            self._before[number] = signal.signal(number, self._note_forwarded)
        # the nodes of a suspended launcher would end the run
        self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        return self

    def stop(self) -> None:
        """Count a request to stop that is not a signal."""
        self.count += 1

    def wait(
        self,
        futures: Sequence[Awaited],
        timeout: float,
        notify: Callable[[], object] = lambda: None,
        *,
        renewed: bool = False,
    ) -> None:
        """Wait until all are done, or for `timeout` seconds. Raises Interrupted.

        `notify` is called several times a second, and at the end. With `renewed`, the seconds count
        from the last one that was done.
        """
        deadline = time.monotonic() + timeout
        waiting = Countdown(futures)
        before = waiting.left
        while True:
            self.check()
            notify()
            if renewed and waiting.left < before:
                before, deadline = waiting.left, time.monotonic() + timeout
            left = deadline - time.monotonic()
            if left <= 0 or waiting.wait(min(_POLL, left)):
                notify()
                return

    def check(self) -> None:
        """Raise Interrupted if the user has asked to stop."""
        if self.count or self.until():
            raise Interrupted("interrupted")

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.stop()

    def _note_forwarded(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        if number == self.notice:
            self.notices += 1
