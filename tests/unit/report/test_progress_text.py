"""The texts of the progress of a training."""

from __future__ import annotations

import pytest

from dslaunch.report.progress_text import progress_parts, step_text
from dslaunch.run.progress import Progress


@pytest.mark.parametrize(
    ("progress", "parts"),
    [
        (Progress(3, loss=2.1134, steps_per_second=3.14), ["step 3", "loss 2.113", "3.14 it/s"]),
        (Progress(1240, 5000, epoch=1.5), ["step 1,240/5,000", "epoch 1.5"]),
        (Progress(steps_per_second=0.25), ["4 s/it"]),
        (Progress(tokens_per_second=12345.6), ["12,346 tokens/s"]),
        (Progress(), []),
    ],
)
def test_parts_are_what_is_known(progress: Progress, parts: list[str]) -> None:
    assert list(progress_parts(progress)) == parts


def test_the_speed_can_be_left_to_others() -> None:
    progress = Progress(3, steps_per_second=3.14, tokens_per_second=9.0)
    assert list(progress_parts(progress, speed=False)) == ["step 3"]


@pytest.mark.parametrize("progress", [None, Progress(loss=1.0)])
def test_without_a_step_there_is_no_text(progress: Progress | None) -> None:
    assert step_text(progress) == ""
