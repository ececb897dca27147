"""From node to node: what each pair measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dslaunch.preflight.check import Nodes
from dslaunch.preflight.checks._measure import speed
from dslaunch.preflight.checks.net_bandwidth import measured
from dslaunch.preflight.checks.net_mesh import called, calls, calls_again, with_repeated

MOST = 64
"""Nodes up to which a matrix can be read by a person."""


class PairMatrix(Struct, frozen=True):
    """What was measured from each row's node to each column's."""

    title: str
    hosts: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    """Words for a pair that was tried."""
    heat: Mapping[tuple[str, str], float]
    """0 is the best of all, 1 the worst, or a failure."""

    def word(self, row: str, column: str) -> str:
        """What a pair has, empty if it was not tried."""
        return self.cells.get((row, column), "")

    def shade(self, row: str, column: str) -> int:
        """Percent of heat, -1 where nothing was tried."""
        value = self.heat.get((row, column))
        return -1 if value is None else round(100 * value)


def tcp(nodes: Nodes) -> PairMatrix | None:
    """Who reaches whom by TCP; None for a single node, or more than can be read."""
    asked = calls(nodes) if len(nodes) <= MOST else {}
    if len(asked) < 2:
        return None
    first = called(nodes, asked)
    heard = with_repeated(first, called(nodes, calls_again(asked, first)))
    cells, heat = {}, {}
    for host, answers in heard.items():
        for other, answer in answers.items():
            cells[host, other] = "✗" if "error" in answer else "✓"
            heat[host, other] = 1.0 if "error" in answer else 0.0
    return PairMatrix("TCP from each row's node to each column's", tuple(asked), cells, heat)


def bandwidth(nodes: Nodes) -> PairMatrix | None:
    """How fast TCP is from node to node; None if it was not measured, or is more than can be
    read."""
    if not nodes or len(nodes) > MOST:
        return None
    rates, errors = measured(nodes)
    if not rates:
        return None
    best = max(*rates.values(), 1.0)
    cells = {pair: speed(rate) for pair, rate in rates.items()} | dict.fromkeys(errors, "✗")
    heat = {pair: 1 - rate / best for pair, rate in rates.items()} | dict.fromkeys(errors, 1.0)
    return PairMatrix(
        "TCP bandwidth from each row's node to each column's", tuple(nodes), cells, heat
    )
