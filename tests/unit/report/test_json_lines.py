"""Lines of output as JSON."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from dslaunch.report.json_lines import json_lines
from dslaunch.run.events import LineBlock

TEXTS = st.text(alphabet='a"\\\n{},: \x1b\ud800é')


@given(
    text=TEXTS, host=TEXTS, rank=st.none() | st.integers(0, 9), task=st.sampled_from(["", "1_2"])
)
def test_lines_together_are_the_objects_of_single_lines(
    text: str, host: str, rank: int | None, task: str
) -> None:
    block = LineBlock(1.5, host, rank, "stderr", text, task)
    objects = [json.loads(line) for line in json_lines(block, {"kind": "output"}).splitlines()]
    assert objects == [{"kind": "output", **line.as_data()} for line in block]


def test_a_field_with_the_words_of_the_text_is_not_taken_for_it() -> None:
    block = LineBlock(0.0, '"text": ""', 0, "stdout", '"text": ""\nb')
    texts = [json.loads(line)["text"] for line in json_lines(block).splitlines()]
    assert texts == ['"text": ""', "b"]
