"""The figures of the page about thousands of nodes are those of the model."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulated.costs import (
    MEASURED,
    ONE_WAY,
    Line,
    costs_table,
    exponent,
    fitted,
    levels_of,
    predict,
    table,
)

PAGE = Path(__file__).parents[2] / "docs/explanation/scale.md"


@pytest.mark.parametrize("shown", [costs_table(MEASURED), table(MEASURED, ONE_WAY)])
def test_the_page_has_the_tables_of_the_model(shown: str) -> None:
    assert f"\n\n{shown}\n\n" in PAGE.read_text("utf-8")


def test_a_line_through_points_on_it_is_found_again() -> None:
    line = fitted([(number, 2.0 + 0.5 * number) for number in (10, 100, 1000)])
    assert (line.fixed, line.each) == pytest.approx((2.0, 0.5))
    assert exponent((10, 7.0), (1000, 700.0)) == pytest.approx(1.0)
    assert Line(1.0, 2.0).at(3) == 7.0


@pytest.mark.parametrize(
    ("nodes", "fan_out", "levels"), [(32, 32, 1), (33, 32, 2), (1056, 32, 2), (1057, 32, 3)]
)
def test_a_tree_has_the_levels_that_its_nodes_need(nodes: int, fan_out: int, levels: int) -> None:
    assert levels_of(nodes, fan_out) == levels


def test_a_tree_costs_the_launcher_fewer_connections_and_more_levels() -> None:
    flat, tree = predict(MEASURED, 1000), predict(MEASURED, 1000, fan_out=32)
    assert (flat.connections, tree.connections) == (1000, 32)
    assert tree.cpu < flat.cpu
    assert tree.memory < flat.memory
    assert tree.levels > flat.levels
