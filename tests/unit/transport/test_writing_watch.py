"""A program that reads nothing of what is sent to it is noticed, and no other one."""

from __future__ import annotations

import threading

from tests.unit.transport.fake import Answer, FakeChannel

from dslaunch.transport import loop
from dslaunch.transport.writing_watch import WritingWatch


class Buffered(FakeChannel):
    """A program that takes what a test lets it take."""

    def __init__(self, *, unsent: int = 0) -> None:
        super().__init__(Answer())
        self.unsent = unsent

    def write(self, data: bytes) -> None:
        self.unsent += len(data)


class Turns:
    """Holds the thread of all connections while a test writes, and then lets it look."""

    def __init__(self) -> None:
        self._hold = threading.Event()
        loop.shared().call(lambda: self._hold.wait(300))

    def go_on(self) -> None:
        """Let all looks happen that are due by now."""
        looked = threading.Event()
        loop.shared().call_when_handled(looked.set)
        self._hold.set()
        assert looked.wait(300)


def test_a_program_that_takes_nothing_for_the_whole_time_is_reported_once() -> None:
    stuck = threading.Semaphore(0)
    channel = Buffered()
    watch = WritingWatch(channel, lambda _: stuck.release(), timeout=0.0)
    turns = Turns()
    watch.write(b"abc")
    watch.write(b"def")
    turns.go_on()
    assert stuck.acquire(timeout=300)
    assert not stuck.acquire(blocking=False)


def test_what_was_given_to_the_channel_before_is_watched_too() -> None:
    stuck = threading.Event()
    WritingWatch(Buffered(unsent=10), lambda _: stuck.set(), written=10, timeout=0.0)
    assert stuck.wait(300)


def test_a_program_that_takes_some_is_not_reported() -> None:
    stuck = threading.Event()
    channel = Buffered()
    turns = Turns()
    watch = WritingWatch(channel, lambda _: stuck.set(), timeout=0.0)
    watch.write(b"abc")
    channel.unsent = 0
    turns.go_on()
    assert not stuck.is_set()
