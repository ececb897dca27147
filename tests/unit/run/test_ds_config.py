"""A job's DeepSpeed config is read before the start, for the ranks that there will be."""

from __future__ import annotations

from pathlib import Path

import pytest

from dslaunch.cluster.model import Allocation, Node
from dslaunch.errors import ErrorCode, PlanError
from dslaunch.launch.decisions import DecisionCode
from dslaunch.launch.job import Job
from dslaunch.run.code_configs import configs_in_code
from dslaunch.run.ds_config import config_errors, offloads_to_host, refuse, warnings

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


@pytest.mark.parametrize(
    ("zero", "offloads"),
    [
        ('{"offload_optimizer": {"device": "cpu"}}', True),
        ('{"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "nvme"}}', True),
        ('{"cpu_offload": true}', True),
        ('{"offload_optimizer": {"device": "none"}}', False),
        ('{"offload_optimizer": "cpu"}', False),
        ("3", False),
    ],
)
def test_offload_to_the_nodes_memory_is_read_from_the_config(
    tmp_path: Path, zero: str, *, offloads: bool
) -> None:
    (tmp_path / "ds.json").write_text(f'{{"zero_optimization": {zero}}}')
    job = Job("train.py", ("--deepspeed", "ds.json"))
    assert offloads_to_host(job, tmp_path) is offloads


def test_offload_is_read_from_the_configs_that_code_names_too(tmp_path: Path) -> None:
    in_code = tmp_path / "in_code.json"
    in_code.write_text('{"zero_optimization": {"offload_param": {"device": "cpu"}}}')
    assert offloads_to_host(Job("train.py"), tmp_path, [in_code])


def test_a_config_that_is_missing_or_broken_offloads_nothing(tmp_path: Path) -> None:
    job = Job("train.py", ("--deepspeed", "ds.json"))
    assert not offloads_to_host(job, tmp_path)
    (tmp_path / "ds.json").write_text("{nothing")
    assert not offloads_to_host(job, tmp_path)


def test_a_warning_has_position_effect_and_fix(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_batch_size": 6, "zero_optimisation": {}}')
    job = Job("train.py", ("--deepspeed_config", "ds.json"))
    (told,) = warnings(config_errors(job, tmp_path, SIX_RANKS))
    assert told.code is DecisionCode.CONFIG_ERROR
    place = [told.values[name] for name in ("file", "line", "path")]
    assert place == ["ds.json", 1, "zero_optimisation"]
    assert "zero_optimization" in str(told.values["fix"])


def test_errors_stop_a_start_with_all_places_and_fixes(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8,\n"zero_optimisation": {}}')
    job = Job("train.py", ("--deepspeed_config", "ds.json"))
    with pytest.raises(PlanError) as refused:
        refuse(config_errors(job, tmp_path, SIX_RANKS))
    assert (refused.value.exit_code, refused.value.error_code) == (3, ErrorCode.CONFIG_ERRORS)
    assert "ds.json:1:" in refused.value.message
    assert "ds.json:2:1: zero_optimisation" in refused.value.message
    assert "--force" in (refused.value.hint or "")
    refuse(())


def test_a_config_that_code_names_is_read_too_less_what_code_may_fill_in(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8, "zero_optimisation": {}}')
    errors = config_errors(Job("train.py"), tmp_path, SIX_RANKS, [tmp_path / "ds.json"])
    assert [error.path for error in errors] == ["zero_optimisation"]


def test_a_config_in_a_file_of_arguments_is_found(tmp_path: Path) -> None:
    (tmp_path / "args.yaml").write_text("deepspeed: a.json\ntrain:\n  deepspeed: b.json\n")
    found = configs_in_code(Job("train.py", ("args.yaml",)), tmp_path, None)
    assert [each.path for each in found] == ["a.json", "b.json"]


def test_a_file_of_arguments_is_read_without_what_its_aliases_stand_for(tmp_path: Path) -> None:
    """Nine merges of nine merges of nine entries, and so on: 9^40 entries."""
    levels = ["k0: &k0 {a: 1}"]
    levels += [f"k{at}: &k{at} {{<<: [{', '.join([f'*k{at - 1}'] * 9)}]}}" for at in range(1, 40)]
    (tmp_path / "args.yaml").write_text("\n".join([*levels, "deepspeed: a.json"]))
    found = configs_in_code(Job("train.py", ("args.yaml",)), tmp_path, None)
    assert [each.path for each in found] == ["a.json"]
