"""Whether work takes too much processor time for its input.

Whatever else a machine does only adds to a measured time: another program in the cache, or a host
that takes the CPU away from a virtual machine. So one measurement in proportion shows that the work
is in proportion, and only many that are not show that it is not.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

FACTOR = 8
"""How much larger the large input is."""
MOST = 3 * FACTOR
"""How much more time it may take. Quadratic work takes FACTOR squared."""
ROUNDS = 12
SHORT_TRIES = 3
"""Measurements of the small input a round: a slow one would hide that the large one is slow."""
FIRST_PAUSE = 0.01
"""Seconds; each round waits longer than the one before, to outlast slow phases of the machine."""
TRIES = 3

Work = Callable[[], object]
Result = TypeVar("Result")


def seconds(work: Work, clock: Callable[[], float] = time.process_time) -> float:
    """Return the processor time of some work, without what collecting others' garbage takes."""
    collects = gc.isenabled()
    gc.disable()
    try:
        began = clock()
        work()
        return clock() - began
    finally:
        if collects:
            gc.enable()


def result_within(limit: float, work: Callable[[], Result]) -> Result:
    """Return the result of some work that takes less than `limit` seconds of processor time, in one
    of a few tries. Use it where a cap bounds the work, with a limit far above what the work needs;
    else `grows`, which depends on no machine. AssertionError."""
    results: list[Result] = []
    times = []
    for _ in range(TRIES):
        times.append(seconds(lambda: results.append(work())))
        if times[-1] < limit:
            return results[-1]
    raise AssertionError(f"it took {min(times):.1f} s of processor time, and may take {limit:g} s")


def grows(
    prepare: Callable[[int], Work],
    size: int,
    clock: Callable[[], float] = time.process_time,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Return whether work grows faster than its input does, from `size` on and from twice that.

    `prepare` returns the work on an input of a size, ready to be measured.
    """
    return all(_is_out_of_proportion(prepare, each, clock, pause) for each in (size, 2 * size))


def _is_out_of_proportion(
    prepare: Callable[[int], Work],
    size: int,
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> bool:
    small, large = prepare(size), prepare(FACTOR * size)
    short = long = float("inf")
    for number in range(ROUNDS):
        short = min(short, *(seconds(small, clock) for _ in range(SHORT_TRIES)))
        long = min(long, seconds(large, clock))
        if long <= MOST * short:
            return False
        pause(FIRST_PAUSE * 2 ** min(number, 5))
    return True
