"""What is of another type than documented is an error of usage, not of the code that meets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dslaunch
from dslaunch.cluster.model import Node

CLUSTER = dslaunch.Cluster("c", (Node("n1", (0,)),), transport="local")
CALLS: dict[str, Callable[[Any], object]] = {
    "labels": lambda value: dslaunch.select(CLUSTER, labels=value),
    "only": lambda value: dslaunch.preflight(CLUSTER, only=value),
    "skip": lambda value: dslaunch.preflight(CLUSTER, skip=value),
    "purposes": lambda value: dslaunch.preflight(CLUSTER, purposes=value),
    "tier": lambda value: dslaunch.preflight(CLUSTER, tier=value),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_text_is_no_list_of_texts(name: str) -> None:
    with pytest.raises(dslaunch.UsageError):
        CALLS[name]("fs.free")


def test_an_exception_shows_no_control_characters_of_a_node() -> None:
    error = dslaunch.DslaunchError("bad\x1b]0;owned\x07\nnext")
    assert str(error) == "bad\\u001b]0;owned\\u0007\nnext"
    assert error.message == "bad\x1b]0;owned\x07\nnext"
