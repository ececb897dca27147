"""How long a rank waits for a CPU, which counts as a hang only in part."""

from __future__ import annotations

from dslaunch.node.cpu_waits import MOST_STARVED, CpuWaits


def test_a_wait_for_a_cpu_counts_since_the_last_progress() -> None:
    waits = CpuWaits()
    waits.take({0: 0.0, 1: 50.0}, progress=True)
    waits.take({0: 0.0, 1: 56.0}, progress=False)
    assert (waits.seconds, waits.own(10.0)) == (6.0, 4.0)
    assert waits.own(6.0) == 6.0 / MOST_STARVED
    waits.take({0: 0.0}, progress=False)
    assert waits.seconds == 6.0  # the node of rank 1 has not answered yet
    waits.take({0: 0.0, 1: 57.0}, progress=True)
    assert (waits.seconds, waits.own(10.0)) == (0.0, 10.0)
