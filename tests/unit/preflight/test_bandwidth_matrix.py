"""The heat map of bandwidths: the best is cold, what is slow or failed is hot."""

from __future__ import annotations

from pathlib import Path

from tests.checks.recorded import facts_of, read

from dslaunch.preflight.checks import net_bandwidth
from dslaunch.preflight.judge import node_answers
from dslaunch.preflight.pair_matrix import PairMatrix, bandwidth

CASES = Path(__file__).parents[2] / "checks" / "net.bandwidth"


def matrix(case: str) -> PairMatrix | None:
    """Of recorded answers."""
    facts = facts_of(read(CASES / f"{case}.toml"), net_bandwidth.CHECK)
    return bandwidth(node_answers(facts))


def test_each_pair_has_its_figure_and_the_slow_ones_are_hot() -> None:
    found = matrix("one-has-a-delay-of-60-ms")
    assert found is not None
    assert found.hosts == ("node1", "node2", "node3")
    assert (found.word("node1", "node3"), found.shade("node1", "node3")) == ("2.5 GB/s", 0)
    assert (found.word("node2", "node3"), found.shade("node2", "node3")) == ("32 MB/s", 99)
    assert (found.word("node1", "node1"), found.shade("node1", "node1")) == ("", -1)


def test_a_pair_that_failed_is_as_hot_as_can_be() -> None:
    found = matrix("one-cannot-send")
    assert found is not None
    assert (found.word("node3", "node1"), found.shade("node3", "node1")) == ("✗", 100)


def test_of_one_node_there_is_no_map() -> None:
    assert matrix("one-node") is None
