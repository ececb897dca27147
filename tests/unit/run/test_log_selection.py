"""Which lines of a run's output are shown."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dslaunch.run.events import Line, LineBlock
from dslaunch.run.log_selection import SelectedLines, selection_of
from dslaunch.run.view import Callbacks

BLOCKS = [
    LineBlock(1.0, "n1", 0, "stdout", "step 1\nloss 2.0"),
    LineBlock(2.0, "n2", 1, "stdout", "step 1\nstep 2\nloss 1.0"),
]


def shown(outputs: Iterable[Line | LineBlock], **conditions: object) -> list[Line]:
    lines: list[Line] = []
    chosen = SelectedLines(Callbacks(on_line=lines.append), selection_of(**conditions))  # type: ignore[arg-type]
    for output in outputs:
        if isinstance(output, Line):
            chosen.line(output)
        else:
            chosen.block(output)
    chosen.release()
    return lines


@pytest.mark.parametrize(
    ("conditions", "texts"),
    [
        ({}, ["step 1", "loss 2.0", "step 1", "step 2", "loss 1.0"]),
        ({"ranks": [1]}, ["step 1", "step 2", "loss 1.0"]),
        ({"hosts": ["n1"]}, ["step 1", "loss 2.0"]),
        ({"since": 1.5}, ["step 1", "step 2", "loss 1.0"]),
        ({"until": 1.5}, ["step 1", "loss 2.0"]),
        ({"matching": "step 2|loss"}, ["loss 2.0", "step 2", "loss 1.0"]),
        ({"tail": 2}, ["step 2", "loss 1.0"]),
        ({"tail": 1, "matching": "step"}, ["step 2"]),
    ],
)
def test_lines_are_selected_together_as_one_by_one(
    conditions: dict[str, object], texts: list[str]
) -> None:
    one_by_one = shown((line for block in BLOCKS for line in block), **conditions)
    assert shown(BLOCKS, **conditions) == one_by_one
    assert [line.text for line in one_by_one] == texts
