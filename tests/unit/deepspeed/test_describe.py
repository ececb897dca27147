from __future__ import annotations

import json
from typing import Any

import pytest
from tests.json_schema import Draft202012Validator

from dslaunch.deepspeed import config_text, describe, schema
from dslaunch.deepspeed.compare import UNSET, differences
from dslaunch.errors import UsageError

NEW = schema.load("0.19.8")


def explained(key: str) -> dict[str, Any]:
    (found,) = describe.find(NEW, key)
    return describe.explained(found, NEW)


def test_a_key_is_explained_by_its_path_or_its_last_name() -> None:
    assert explained("zero_optimization.overlap_comm") == explained("overlap_comm")
    facts = explained("overlap_comm")
    assert facts["type"] == "bool or null"
    assert facts["default"] == "null"
    assert "stage == 3" in facts["note"]
    assert facts["meaning"].endswith(".")


def test_the_default_is_the_true_one() -> None:
    assert explained("stage3_prefetch_bucket_size")["default"] == "50000000"
    assert explained("offload_param.device")["default"] == '"none"'
    assert explained("gradient_clipping")["default"] == "1.0"


def test_a_removed_key_says_since_when() -> None:
    versions = explained("amp")["versions"]
    assert [word for word in versions.replace(";", "").split() if word[0].isdigit()] == [
        "0.16.9", "0.19.6", "0.19.8",
    ]  # fmt: skip
    assert explained("compute_grad_norm")["versions"] == "since 0.19.8"


def test_several_keys_can_have_one_name() -> None:
    found = [key.path for key in describe.find(NEW, "pin_memory")]
    assert "zero_optimization.offload_param.pin_memory" in found
    assert len(found) > 1


def test_an_unknown_key_is_an_error_with_similar_ones() -> None:
    with pytest.raises(UsageError) as raised:
        describe.find(NEW, "overlap_com")
    assert raised.value.values["meant"] == "zero_optimization.overlap_comm"


def test_an_explanation_has_a_line_for_each_fact() -> None:
    lines = describe.explanation(explained("train_micro_batch_size_per_gpu")).splitlines()
    assert lines[0] == "train_micro_batch_size_per_gpu"
    assert "    auto: Hugging Face's Trainer and accelerate" in lines


@pytest.mark.parametrize("version", schema.versions())
def test_the_json_schema_is_one(version: str) -> None:
    Draft202012Validator.check_schema(describe.json_schema(schema.load(version)))


@pytest.mark.parametrize(
    ("config", "valid"),
    [
        ({"train_batch_size": 8, "zero_optimization": {"stage": 2}}, True),
        ({"train_batch_size": "auto", "bf16": {"enabled": "auto"}}, True),
        ({"my_own": 1}, True),
        ({"zero_optimization": {"stage": 4}}, False),
        ({"zero_optimization": {"overlap_com": True}}, False),
        ({"checkpoint": {"use_node_local": True}}, False),
        ({"amp": {"enabled": True}}, False),
        ({"zero_optimization": {"offload_param": {"buffer_size": 1e8}}}, True),
        ({"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}, True),
        ({"fp16": {"enabled": "yes"}}, False),
    ],
)
def test_the_json_schema_takes_what_is_right(config: dict[str, Any], valid: bool) -> None:
    validator = Draft202012Validator(describe.json_schema(NEW))
    assert validator.is_valid(config) == valid


def test_a_version_without_a_table_is_read_with_the_one_before() -> None:
    assert schema.table("0.19.7").version == "0.19.6"
    assert schema.table("v1.0+cu121").version == "0.19.8"
    assert schema.table("0.5").version == "0.16.9"
    assert schema.table().version == schema.versions()[-1]
    with pytest.raises(UsageError):
        schema.table("newest")


def test_a_path_of_a_config_is_found_in_the_table() -> None:
    metric = ("data_efficiency", "data_sampling", "curriculum_learning", "curriculum_metrics")
    key = NEW.find((*metric, "mine", "min_difficulty"))
    assert key is not None
    assert key.path.endswith("<metric>.min_difficulty")
    assert NEW.general((*metric, "mine")) is not None
    assert NEW.find(("zero_optimization", "nothing")) is None


def compared(first: Any, second: Any) -> list[tuple[str, Any, Any]]:
    documents = [config_text.parse(json.dumps(each), "c") for each in (first, second)]
    return [(d.path, d.first, d.second) for d in differences(*documents, NEW)]


def test_configs_that_do_the_same_do_not_differ() -> None:
    first = {
        "zero_optimization": {"stage": "2", "cpu_offload": True, "max_live_parameters": 5},
        "bfloat16": {"enabled": "yes"},
        "unknown": 1,
    }
    second = {
        "bf16": {"enabled": True},
        "steps_per_print": None,
        "zero_optimization": {
            "offload_optimizer": {"device": "cpu"},
            "stage3_max_live_parameters": 5.0,
            "stage": 2,
        },
    }
    assert compared(first, second) == []


def test_what_differs_is_shown_with_the_defaults_filled_in() -> None:
    first = {"zero_optimization": {"stage": 3}, "optimizer": {"type": "Adam", "params": {"lr": 1}}}
    second = {"zero_optimization": {"stage": 2, "overlap_comm": False}}
    assert compared(first, second) == [
        ("zero_optimization.stage", 3, 2),
        ("optimizer.type", "Adam", None),
        ("optimizer.params.lr", 1, UNSET),
        ("zero_optimization.overlap_comm", True, False),
    ]


def test_an_explanation_fits_the_terminal_and_says_the_same() -> None:
    facts = explained("overlap_comm")
    whole, narrow = describe.explanation(facts), describe.explanation(facts, 40)
    assert max(map(len, narrow.splitlines())) <= 40 < max(map(len, whole.splitlines()))
    assert narrow.split() == whole.split()
