"""A job's DeepSpeed config is read before the start, for the ranks that there will be."""

from __future__ import annotations

from pathlib import Path

import pytest

from dslaunch.cluster.model import Allocation, Node
from dslaunch.launch.job import Job
from dslaunch.run.ds_config import config_errors, warnings

SIX_RANKS = Allocation.of([(Node(f"n{i}", (0, 1, 2)), (0, 1, 2)) for i in range(2)])


def errors(tmp_path: Path, text: str, *args: str) -> list[str]:
    (tmp_path / "ds.json").write_text(text)
    job = Job("train.py", args or ("--deepspeed_config", "ds.json"))
    return [f"{e.line}: {e.path}: {e.rule}" for e in config_errors(job, tmp_path, SIX_RANKS)]


def test_a_key_that_deepspeed_would_ignore_is_an_error(tmp_path: Path) -> None:
    text = '{"train_micro_batch_size_per_gpu": 1,\n "zero_optimisation": {"stage": 2}}'
    assert errors(tmp_path, text) == ["2: zero_optimisation: ignored-key"]


def test_the_batch_is_reckoned_with_the_ranks_of_this_run(tmp_path: Path) -> None:
    assert errors(tmp_path, '{"train_batch_size": 12}') == []
    (error,) = errors(tmp_path, '{"train_batch_size": 8}')
    assert error.startswith("1: train_batch_size: ")


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ('{"train_batch_size": 6}', ("--deepspeed_config=ds.json",)),
        ('{"zero_optimisation": {}}', ("--deepspeed_config", "elsewhere.json")),
        ('{"zero_optimisation": {}}', ("--lr", "1e-4")),
        ("{nothing", ("--deepspeed", "ds.json")),
    ],
)
def test_nothing_is_said_of_a_good_config_or_of_none(
    tmp_path: Path, text: str, args: tuple[str, ...]
) -> None:
    assert errors(tmp_path, text, *args) == []


def test_a_warning_tells_place_consequence_and_fix(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_batch_size": 6, "zero_optimisation": {}}')
    job = Job("train.py", ("--deepspeed_config", "ds.json"))
    (told,) = warnings(config_errors(job, tmp_path, SIX_RANKS))
    assert told.what == "warning"
    assert told.value.startswith("ds.json:1:25: error: zero_optimisation: unknown key: ignored")
    assert told.why == "did you mean zero_optimization?"
