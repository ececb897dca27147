"""Work of a rank that is no hang, although it enters no collective."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dslaunch.node import processes
from dslaunch.node.own_work import BYTES_PER_SECOND, OwnWork, RankWork, cpu_seconds, transferred

NOTHING = RankWork(transferred=0, compiled=None)
OTHER_RANK = {1: NOTHING}


@pytest.mark.parametrize(
    ("before", "work", "is_work"),
    [
        # a large file in 5 s, and the messages of a log
        (NOTHING, RankWork(6 * BYTES_PER_SECOND, None), True),
        (NOTHING, RankWork(2 * BYTES_PER_SECOND, None), False),
        # a compiler that uses the CPU, and a rank that waits for another one to compile
        (RankWork(0, 70.0), RankWork(0, 74.5), True),
        (RankWork(0, 70.0), RankWork(0, 70.1), False),
        # how much CPU time the compiler has used is not known yet
        (NOTHING, RankWork(0, 80.0), False),
        (RankWork(0, 80.0), NOTHING, False),
    ],
)
def test_work_is_a_compilation_that_uses_the_cpu_or_a_large_transfer(
    before: RankWork, work: RankWork, is_work: bool
) -> None:
    own_work = OwnWork()
    assert not own_work.take({0: before, **OTHER_RANK}, now=100.0)
    assert own_work.take({0: work, **OTHER_RANK}, now=105.0) is is_work
    assert not own_work.take({0: work, **OTHER_RANK}, now=110.0)


def test_what_a_process_writes_and_computes_is_counted() -> None:
    before = transferred(os.getpid())
    Path(os.devnull).write_bytes(bytes(4096))
    assert transferred(os.getpid()) >= before + 4096
    stat = processes.stat(os.getpid())
    assert stat is not None
    assert cpu_seconds(stat) > 0
    assert transferred(2**22 + 1) == 0  # no process has this number
