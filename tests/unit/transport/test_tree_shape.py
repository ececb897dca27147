"""The shape of a tree: whatever the number of nodes, every promise of `tree_shape` holds."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.transport.tree_shape import TreeShape, tree_shape

COUNTS = st.integers(0, 400)
FAN_OUTS = st.integers(2, 40)


def shape_of(count: int, fan_out: int) -> TreeShape:
    return tree_shape([f"n{number}" for number in range(count)], fan_out)


@given(COUNTS, FAN_OUTS)
def test_every_node_has_one_place_and_the_order_is_kept(count: int, fan_out: int) -> None:
    assert list(shape_of(count, fan_out).parents) == [f"n{number}" for number in range(count)]


@given(COUNTS, FAN_OUTS)
def test_nobody_logs_in_to_more_nodes_than_the_fan_out(count: int, fan_out: int) -> None:
    children = Counter(shape_of(count, fan_out).parents.values())
    assert max(children.values(), default=0) <= fan_out


@given(COUNTS, FAN_OUTS)
def test_every_chain_of_parents_ends_at_the_launcher(count: int, fan_out: int) -> None:
    shape = shape_of(count, fan_out)
    assert all(shape.level(host) < max(1, count) for host in shape.parents)


@given(COUNTS, FAN_OUTS)
def test_a_parent_comes_before_its_children_in_the_cluster_file(count: int, fan_out: int) -> None:
    place = {host: number for number, host in enumerate(shape_of(count, fan_out).parents)}
    parents = shape_of(count, fan_out).parents.items()
    assert all(place[parent] < place[host] for host, parent in parents if parent is not None)


@given(COUNTS, FAN_OUTS)
def test_there_are_no_more_levels_than_the_fan_out_needs(count: int, fan_out: int) -> None:
    shape = shape_of(count, fan_out)
    deepest = max((shape.level(host) for host in shape.parents), default=0)
    room = sum(fan_out ** (level + 1) for level in range(deepest))
    assert count > room or count == 0


@pytest.mark.parametrize("count", [1, 2, 32])
def test_as_many_nodes_as_the_fan_out_are_no_tree(count: int) -> None:
    shape = shape_of(count, 32)
    assert shape.inner == ()
    assert set(shape.parents.values()) == {None}


@given(COUNTS, FAN_OUTS)
def test_two_levels_have_as_few_parents_as_possible_but_two(count: int, fan_out: int) -> None:
    shape = shape_of(count, fan_out)
    behind_others = sum(parent is not None for parent in shape.parents.values())
    if all(shape.level(host) < 2 for host in shape.parents):
        needed = math.ceil(behind_others / fan_out)
        assert len(shape.inner) == max(needed, min(2, behind_others))


def test_neighbors_share_a_parent() -> None:
    parents = shape_of(7, 2).parents
    assert parents == {
        "n0": None, "n1": "n0", "n2": "n0", "n3": None, "n4": "n3", "n5": "n4", "n6": "n3"
    }  # fmt: skip
    assert shape_of(7, 2).inner == ("n0", "n3", "n4")
    assert shape_of(7, 2).first_inner == ("n0", "n3")


def test_ten_thousand_nodes_need_few_parents() -> None:
    shape = shape_of(10_000, 32)
    assert len(shape.first_inner) == 32
    assert len(shape.inner) == 32 + 32 * 9
