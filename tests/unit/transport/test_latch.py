"""Something that happens once, in one thread, while others wait for it."""

import threading
from concurrent.futures import ThreadPoolExecutor

from dslaunch.transport.latch import Latch


def test_a_latch_is_not_set_before_it_happens() -> None:
    latch = Latch()
    assert not latch.wait(0.0)
    assert not latch.is_set


def test_a_latch_that_is_set_is_not_waited_for() -> None:
    latch = Latch()
    latch.set()
    latch.set()
    assert latch.wait(0.0)
    assert latch.is_set


def test_a_latch_wakes_all_threads_that_wait_for_it() -> None:
    latch = Latch()
    begun = threading.Barrier(4)

    def wait() -> bool:
        begun.wait()
        return latch.wait(300)

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(wait) for _ in range(3)]
        begun.wait()
        latch.set()
        assert [each.result() for each in waiting] == [True] * 3
