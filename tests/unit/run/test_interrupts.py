"""Signals that a run counts: wishes to end it, and notices for its ranks."""

from __future__ import annotations

import os
import signal

from dslaunch.run.interrupts import Interrupts


def test_a_notice_is_counted_and_is_no_wish_to_end() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with Interrupts(signal.SIGUSR1) as interrupts:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (interrupts.notices, interrupts.count) == (1, 1)
    assert signal.getsignal(signal.SIGUSR1) == before


def test_without_a_notice_its_signal_is_left_alone() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with Interrupts():
        assert signal.getsignal(signal.SIGUSR1) == before
