"""Nodes that are asked which other nodes they reach, and that claim what they like."""

from __future__ import annotations

from typing import Any, cast

from dslaunch.protocol import queries
from dslaunch.run.node_pairs import MOST_ADDRESSES, NodePairs
from dslaunch.run.session import Session
from dslaunch.transport.future import Future


class ClaimingSession:
    """A node that claims addresses, and keeps what it is asked."""

    def __init__(self, host: str, addresses: list[str]) -> None:
        self.host = host
        self.asked: list[queries.Questions] = []
        held = [
            {"name": "eth0", "address": address, "up": True, "loopback": False}
            for address in addresses
        ]
        self._answers = {
            queries.INTERFACES: held,
            queries.LISTEN: {"port": 46000, "taken": []},
            queries.DIAL: {},
        }

    def ask(self, questions: queries.Questions) -> Future[dict[Any, Any]]:
        self.asked.append(questions)
        future: Future[dict[Any, Any]] = Future()
        future.set_result({query: self._answers[query] for query in questions})
        return future


def test_a_node_that_claims_thousands_of_addresses_has_a_few_of_them_dialed() -> None:
    many = [f"10.1.{n // 250}.{n % 250 + 1}" for n in range(10_000)]
    honest, claiming = ClaimingSession("n1", ["10.0.0.1"]), ClaimingSession("n2", many)
    pairs = NodePairs([cast(Session, each) for each in (honest, claiming)], near=None)
    while pairs.result() is None:
        pass
    dial = honest.asked[-1][queries.DIAL]
    assert len(dial["targets"]) == MOST_ADDRESSES
