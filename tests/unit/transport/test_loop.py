"""The thread of all connections."""

from __future__ import annotations

import os

from dslaunch.transport import loop
from dslaunch.transport.loop import SENT_AT_ONCE, paced


def test_what_has_arrived_is_handled_before_further_nodes_are_sent_something() -> None:
    reading, writing = os.pipe()
    arrived: list[bytes] = []

    def read() -> None:
        arrived.append(os.read(reading, SENT_AT_ONCE))

    loop.shared().call(lambda: loop.shared().watch(reading, read))
    arrived_before = []
    sent = []
    for number in paced(range(2 * SENT_AT_ONCE + 1)):
        arrived_before.append(len(b"".join(arrived)))
        os.write(writing, b"x")
        sent.append(number)
    loop.shared().call(lambda: loop.shared().forget(reading))
    loop.shared().call(lambda: os.close(reading))
    os.close(writing)
    assert sent == list(range(2 * SENT_AT_ONCE + 1))
    assert arrived_before[SENT_AT_ONCE] == SENT_AT_ONCE
    assert arrived_before[2 * SENT_AT_ONCE] == 2 * SENT_AT_ONCE
