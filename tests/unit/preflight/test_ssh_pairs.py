"""Who logs in to whom when nodes try each other."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dslaunch.preflight.checks.table_ssh import CALLS, CALLS_AT_ONCE, FULL, pairs

MOST = 8
"""Callers at a time that sshd takes for certain (MaxStartups 10:30:100), with some to spare."""


@given(st.integers(2, 200), st.text(max_size=8))
def test_every_node_calls_and_is_called_equally_often_and_never_itself(
    count: int, token: str
) -> None:
    hosts = [f"n{i}" for i in range(count)]
    called = pairs(hosts, token)
    often = count - 1 if count <= FULL else CALLS
    assert {len(set(targets)) for targets in called.values()} == {often}
    assert all(host not in targets for host, targets in called.items())
    assert set(Counter(t for targets in called.values() for t in targets).values()) == {often}


@given(st.integers(2, 200), st.text(max_size=8))
def test_no_sshd_has_more_callers_at_a_time_than_it_takes(count: int, token: str) -> None:
    called = pairs([f"n{i}" for i in range(count)], token)
    rounds = max(map(len, called.values()))
    for begin in range(rounds):
        window = [t for targets in called.values() for t in targets[begin : begin + CALLS_AT_ONCE]]
        assert max(Counter(window).values(), default=0) <= min(CALLS_AT_ONCE, MOST)
