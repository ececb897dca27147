"""How far a training is, by lines as they were printed."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.run.events import Line
from dslaunch.run.progress import MOST_READ, Progress, ProgressReader, RunProgress
from dslaunch.run.progress_history import ProgressCollector

HERE = Path(__file__).parent
RECORDED = tomllib.loads((HERE / "recorded_progress.toml").read_text())["line"]
SOUND = (HERE / "sound.txt").read_text().splitlines()
TRAINING = ("{'loss'", "{'train_runtime'", "Epoch: [0]", "iteration 100/")
"""How the lines of `sound.txt` begin that are progress."""


def line(text: str, *, rank: int | None = 0, time: float = 0.0) -> Line:
    return Line(time, "node1", rank, "stdout", text)


def speeds(run: RunProgress) -> dict[int, float | None]:
    """The steps per second of each rank."""
    return {rank: progress.steps_per_second for rank, progress in run.by_rank.items()}


@pytest.mark.parametrize("case", RECORDED, ids=[each["text"][:50] for each in RECORDED])
def test_a_recorded_line_is_read(case: dict[str, Any]) -> None:
    found = ProgressReader().read(case["text"])
    expected = case.get("progress")
    if expected is None:
        assert found is None
        return
    assert found is not None
    known = {name: getattr(found, name) for name in Progress.__slots__}
    known = {name: value for name, value in known.items() if value is not None}
    assert known == pytest.approx(expected, rel=1e-3, nan_ok=True)


def test_only_lines_of_a_training_are_progress() -> None:
    read = [text for text in SOUND if ProgressReader().read(text) is not None]
    assert read == [text for text in SOUND if text.startswith(TRAINING)]


@given(st.text(max_size=300))
def test_any_line_is_read(text: str) -> None:
    ProgressReader().read(text)
    RunProgress().note(line(text))


def test_the_lowest_rank_that_prints_progress_is_the_latest() -> None:
    run = RunProgress()
    run.note(line("step 5 loss 3", rank=2))
    run.note(line("step 4 loss 2", rank=1))
    run.note(line("nothing about the training's steps", rank=0))
    run.note(line("step 9 loss 1", rank=None))
    assert run.latest == Progress(step=4, loss=2.0)
    assert run.by_rank == {1: Progress(step=4, loss=2.0), 2: Progress(step=5, loss=3.0)}


def test_the_rank_that_prints_progress_is_found_among_many_whose_lines_resemble_it() -> None:
    run = RunProgress()
    for rank in range(2 * MOST_READ):
        run.note(line("a step across all shards", rank=rank))
    run.note(line("step 5 loss 3", rank=2 * MOST_READ))
    assert [run.latest for _ in range(3)] == [None, None, Progress(step=5, loss=3.0)]


def test_who_asks_once_gets_the_progress_however_many_lines_resemble_it() -> None:
    run = RunProgress()
    for rank in range(1, 2 * MOST_READ):
        run.note(line("a step across all shards", rank=rank))
    run.note(line("step 4 loss 2", rank=2 * MOST_READ))
    run.note(line("step 5 loss 3", rank=0))
    assert run.latest_of_all() == Progress(step=5, loss=3.0)


def test_the_progress_of_one_rank_is_read_with_that_of_no_other() -> None:
    run = RunProgress()
    run.note(line("step 5 loss 3", rank=1))
    assert run.of(0) is None
    assert run.of(1) == Progress(step=5, loss=3.0)


def test_a_run_without_progress_has_none() -> None:
    run = RunProgress()
    run.note(line("hello"))
    assert run.latest is None


def test_a_bar_and_a_record_complete_each_other() -> None:
    run = RunProgress()
    run.note(line(" 42%|████▏     | 10/24 [00:02<00:07,  2.00it/s]"))
    run.note(line("{'loss': 2.5, 'epoch': 0.5}"))
    found = run.latest
    assert found == Progress(10, 24, epoch=0.5, loss=2.5, steps_per_second=2.0)


def test_the_bar_of_an_evaluation_does_not_reset_the_step() -> None:
    run = RunProgress()
    run.note(line(" 42%|████▏     | 10/24 [00:02<00:07,  2.00it/s]"))
    run.note(line(" 50%|█████     | 8/16 [00:00<00:00, 46.13it/s]"))
    run.note(line("100%|██████████| 16/16 [00:00<00:00, 41.58it/s]"))
    assert run.latest == Progress(10, 24, steps_per_second=2.0)


def test_an_unnamed_bar_after_a_complete_one_is_the_trainings() -> None:
    run = RunProgress()
    run.note(line("100%|██████████| 16/16 [00:00<00:00, 41.58it/s]"))
    run.note(line(" 42%|████▏     | 10/24 [00:02<00:07,  2.00it/s]"))
    assert run.latest == Progress(10, 24, steps_per_second=2.0)


def test_a_speed_that_no_training_has_is_not_taken_from_times() -> None:
    run = RunProgress()
    run.note(line("step 1 loss 3"))
    run.note(line(f"step {10**14} loss 2", time=5e-324))
    assert run.latest == Progress(step=10**14, loss=2.0)


def test_the_speed_follows_from_the_times_of_the_lines() -> None:
    run = RunProgress()
    for step in range(1, 60):
        run.note(line(f"step {step}/100 loss 2", rank=0, time=100 + step * 0.5))
        run.note(line(f"step {step}/100 loss 2", rank=1, time=100 + step * 2.0))
    assert speeds(run) == pytest.approx({0: 2.0, 1: 0.5})


def test_the_time_of_a_step_is_that_of_the_newest_steps() -> None:
    run = RunProgress()
    for step in range(40):
        run.note(line(f"step {step} loss 2", time=step * 1.0))
    for step in range(40, 60):
        run.note(line(f"step {step} loss 2", time=step * 5.0))
    assert speeds(run) == pytest.approx({0: 0.2})


def test_a_step_that_begins_again_starts_a_new_measurement() -> None:
    run = RunProgress()
    for step, time in ((90, 0.0), (100, 1.0), (10, 50.0), (20, 60.0)):
        run.note(line(f"step {step} loss 2", time=time))
    assert speeds(run) == {0: 1.0}


def test_a_flood_of_lines_keeps_the_newest() -> None:
    run = RunProgress()
    for step in range(10_000):
        run.note(line(f"step {step} loss 2", time=step * 0.001))
    found = run.latest
    assert found is not None
    assert found.step == 9_999


def test_lines_at_one_time_give_no_speed() -> None:
    run = RunProgress()
    for step in range(10):
        run.note(line(f"step {step} loss 2"))
    assert run.latest == Progress(step=9, loss=2.0)


def test_a_loss_that_is_no_number_is_null_in_json() -> None:
    found = ProgressReader().read("step 3 loss nan")
    assert found is not None
    assert found.loss is not None
    assert math.isnan(found.loss)
    assert found.as_data() == {"step": 3, "loss": None}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_value_without_a_number_is_in_json(value: float) -> None:
    said = Progress(epoch=value, loss=value, steps_per_second=value, tokens_per_second=value)
    assert set(said.as_data().values()) == {None}


def test_what_is_not_said_stays_as_it_was() -> None:
    before = Progress(step=1, last_step=9, loss=2.0)
    assert before.updated(Progress(step=2)) == Progress(step=2, last_step=9, loss=2.0)


def test_the_history_of_a_run_has_no_bars_of_evaluations() -> None:
    collector = ProgressCollector()
    for at, text in enumerate(("8/16", "1/4", "4/4", "9/16")):
        collector.line(line(f" 50%|█████     | {text} [00:02<00:07,  2.00it/s]", time=float(at)))
    assert [point.step for point in collector.history().points] == [8, 9]


FORMAT = (
    r"at (?P<step>\S+) of (?P<last_step>\S+) in (?P<epoch>\S+): (?P<loss>\S+)"
    r" (?P<steps_per_second>\S+) (?P<tokens_per_second>\S+)$"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("at 3 of 9 in 1: 2 4 5", Progress(3, 9, 1.0, 2.0, 4.0, 5.0)),
        ("at -3 of 9 in -1: 2 -4 -5", Progress(loss=2.0)),
        ("at 3 of 2 in 1e99: nan nan inf", Progress(3, loss=math.nan)),
        ("at 1e300 of 1e301 in nan: 1e300 1e300 0", None),
        ("at 3 of 3 in inf: -inf 1e-300 1e300", Progress(3, 3, loss=-math.inf)),
    ],
)
def test_impossible_values_are_left_out(text: str, expected: Progress | None) -> None:
    found = ProgressReader([re.compile(FORMAT)]).read(text)
    assert repr(found) == repr(expected)  # NaN is equal to nothing


def test_an_impossible_speed_is_left_out() -> None:
    found = ProgressReader().read("step 7 loss 1 train_step_timing in s: 1e-310")
    assert found == Progress(7, loss=1.0)
