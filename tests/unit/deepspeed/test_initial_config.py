"""First configs, and the library of examples."""

from __future__ import annotations

import json
from itertools import product

import hjson
import pytest

from dslaunch.deepspeed import initial_config
from dslaunch.deepspeed.storage import parse
from dslaunch.errors import ErrorCode, UsageError

FITTING = [
    (stage, offload)
    for stage, offload in product(range(4), ("none", "cpu", "cpu-params", "nvme"))
    if stage >= {"none": 0, "cpu": 1}.get(offload, 3)
]


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(("stage", "offload"), FITTING)
def test_the_text_says_the_settings_and_reads_back(
    stage: int, offload: str, precision: str
) -> None:
    for target in ("hf", "native"):
        purpose = initial_config.purpose(stage, offload, precision, target)
        read = parse(initial_config.text(purpose), "ds_config.json")
        read.pop("_comment", None)
        assert read == initial_config.config(purpose)


def test_hugging_face_gets_strict_json_and_deepspeed_comments_in_their_place() -> None:
    hf = json.loads(initial_config.text(initial_config.purpose(2, "cpu", "bf16", "hf")))
    assert hf["_comment"]["zero_optimization.stage"].startswith("2: ")
    native = initial_config.text(initial_config.purpose(2, "cpu", "bf16", "native"))
    assert "_comment" not in hjson.loads(native)
    lines = native.splitlines()
    assert lines[lines.index('    "stage": 2,') - 1].strip().startswith("// 2: ")


def test_every_setting_but_inner_ones_has_a_comment() -> None:
    for (stage, offload), target in product(FITTING, ("hf", "native")):
        purpose = initial_config.purpose(stage, offload, "bf16", target)
        top = set(initial_config.config(purpose)) - {"zero_optimization"}
        assert top <= set(initial_config.comments(purpose))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((4, "none", "bf16", "hf"), ErrorCode.UNKNOWN_CHOICE),
        ((2, "nvme", "bf16", "hf"), ErrorCode.OFFLOAD_NEEDS_STAGE),
        ((0, "cpu", "bf16", "hf"), ErrorCode.OFFLOAD_NEEDS_STAGE),
        ((2, "disk", "bf16", "hf"), ErrorCode.UNKNOWN_CHOICE),
        ((2, "cpu", "int8", "hf"), ErrorCode.UNKNOWN_CHOICE),
        ((2, "cpu", "bf16", "jax"), ErrorCode.UNKNOWN_CHOICE),
    ],
)
def test_what_does_not_go_together_is_refused(
    words: tuple[int, str, str, str], code: ErrorCode
) -> None:
    with pytest.raises(UsageError) as caught:
        initial_config.purpose(*words)
    assert caught.value.error_code is code


def test_every_example_file_is_described_and_strict_json() -> None:
    names = {path.name.removesuffix(".json") for path in initial_config.EXAMPLES.iterdir()} - {
        "index"
    }
    every = initial_config.library()
    assert {each.name for each in every} == names
    for each in every:
        assert isinstance(json.loads(each.text), dict)
        assert each.name.startswith(f"{each.target}-")
        assert len(each.description.splitlines()) == 1


def test_examples_are_found_by_any_word_in_them() -> None:
    assert [each.name for each in initial_config.library("lamb")] == ["native-lamb-fp16"]
    assert initial_config.library("no such word") == ()


def test_an_example_of_nearly_that_name_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        initial_config.example("hf-zero3-offload")
    assert caught.value.hint == "did you mean `hf-zero3-offload-bf16`?"


def test_native_examples_have_no_auto_which_only_hugging_face_resolves() -> None:
    assert not [e.name for e in initial_config.library('"auto"') if e.target == "native"]
