"""What nodes send of checkpoints and what the launcher accepts: two lists, one content."""

from __future__ import annotations

import pytest

from dslaunch.node import shards
from dslaunch.protocol import checkpoints


@pytest.mark.parametrize("name", ["BESIDE", "TRAINER", "MOST_RANKS", "MOST_PARALLEL"])
def test_a_node_and_the_launcher_agree_on_what_belongs_to_a_checkpoint(name: str) -> None:
    # not imported one from the other: node/shards.py imports more than a run needs
    assert getattr(shards, name) == getattr(checkpoints, name)


def test_every_operation_of_a_node_has_a_type_of_its_answer() -> None:
    for operation in shards.OPERATIONS:
        checkpoints.answer_type(operation)
