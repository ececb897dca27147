"""Signals that a run counts: wishes to end it, and notices for its ranks."""

from __future__ import annotations

import os
import signal

from dslaunch.run.interrupts import Interrupts
from dslaunch.transport.future import Future


def test_a_notice_is_counted_and_is_no_wish_to_end() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with Interrupts(signal.SIGUSR1) as interrupts:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (interrupts.notices, interrupts.count) == (1, 1)
    assert signal.getsignal(signal.SIGUSR1) == before


def test_signals_for_the_ranks_are_kept_and_are_no_wish_to_end() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert list(interrupts.received) == [signal.SIGUSR1, signal.SIGUSR2]
        assert (interrupts.notices, interrupts.count) == (0, 0)
    assert signal.getsignal(signal.SIGUSR2) == before


def wait_for_one_after_the_other(*, renewed: bool) -> int:
    """Wait for answers of which one comes at each look; return how many have come."""
    answers: list[Future[None]] = [Future() for _ in range(9)]
    left = list(answers)

    def answer() -> None:
        if left:
            left.pop().set_result(None)

    Interrupts().wait(answers, 0.2, answer, renewed=renewed)
    return len(answers) - len(left)


def test_a_renewed_timeout_counts_from_the_last_answer() -> None:
    assert wait_for_one_after_the_other(renewed=True) == 9
    assert wait_for_one_after_the_other(renewed=False) < 9
