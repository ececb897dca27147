"""Bytes on their way to a node."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from dslaunch.transport.outbox import Outbox


def test_what_another_thread_passes_on_just_now_is_not_stuck() -> None:
    sending, may_go_on = threading.Event(), threading.Event()

    def send(data: memoryview) -> int:
        sending.set()
        may_go_on.wait(300)
        return len(data)

    outbox = Outbox(send, lambda: None)
    with ThreadPoolExecutor() as pool:
        put = pool.submit(outbox.put, b"a packet")
        assert sending.wait(300)
        is_stuck = pool.submit(outbox.is_stuck)
        assert outbox.unsent == len(b"a packet")
        may_go_on.set()
        put.result(300)
        assert not is_stuck.result(300)


def test_what_is_not_taken_is_stuck_until_it_is() -> None:
    taken = 0
    outbox = Outbox(lambda data: min(taken, len(data)), lambda: None)
    outbox.put(b"a packet")
    assert outbox.is_stuck()
    taken = len(b"a packet")
    outbox.go_on()
    assert not outbox.is_stuck()
