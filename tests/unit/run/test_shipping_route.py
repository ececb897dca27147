"""Who sends shipped files to whom."""

from __future__ import annotations

from collections import Counter

import pytest

from dslaunch.run.shipping_route import LEAST_HANDED_ON, PIECE, senders

MIB = 2**20


def hosts(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def steps(found: dict[str, str | None], host: str) -> int:
    """Return how many times a piece is sent until a node has it."""
    sender = found[host]
    return 1 if sender is None else 1 + steps(found, sender)


def test_the_launcher_sends_small_files_to_every_node_itself() -> None:
    few = hosts(8)
    assert senders(few, LEAST_HANDED_ON // 8 - 1) == dict.fromkeys(few)
    assert senders(["n0"], 200 * MIB) == {"n0": None}


def test_large_files_go_through_a_chain_in_which_each_sends_them_once() -> None:
    found = senders(hosts(64), 200 * MIB)
    assert Counter(found.values()) == dict.fromkeys((None, *hosts(63)), 1)
    assert [found[host] for host in hosts(3)] == [None, "n0", "n1"]


@pytest.mark.parametrize(
    ("count", "size"), [(2, 16 * MIB), (64, 200 * MIB), (64, 10 * MIB), (900, MIB), (10_000, MIB)]
)
def test_files_reach_all_nodes_in_twice_the_time_of_one_and_some_pieces(
    count: int, size: int
) -> None:
    found = senders(hosts(count), size)
    assert list(found) == hosts(count)
    copies = max(Counter(found.values()).values())
    assert copies <= 2
    last = max(steps(found, host) for host in hosts(count)[-2:])
    assert copies * (size + last * PIECE) <= 2 * size + 2 * 14 * PIECE
