"""When SLURM is asked next."""

from __future__ import annotations

from dslaunch.slurm.poll_interval import JITTER, LONGEST_WAIT, PollInterval


def test_questions_are_frequent_at_first_and_seldom_later() -> None:
    assert [PollInterval().wait(age, 0.5) for age in (0, 29, 31)] == [1, 1, 10]


def test_waits_double_with_each_failure_up_to_a_bound() -> None:
    waits = []
    pace = PollInterval()
    for _ in range(100):
        pace = pace.failed()
        waits.append(pace.wait(0, 0.5))
    assert waits[:6] == [2, 4, 8, 16, 32, 60]
    assert set(waits[5:]) == {LONGEST_WAIT}


def test_followers_do_not_ask_all_at_once() -> None:
    waits = [PollInterval(9).wait(0, chance) for chance in (0.0, 1.0)]
    assert waits == [LONGEST_WAIT * (1 - JITTER), LONGEST_WAIT * (1 + JITTER)]
