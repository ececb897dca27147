"""Counting parameters without weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dslaunch.deepspeed.memory import Model
from dslaunch.deepspeed.model_size import from_config, from_path
from dslaunch.errors import ConfigError, DslaunchError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


def weights(path: Path, tensors: Mapping[str, object]) -> None:
    """A safetensors file with a head and no data."""
    head = {
        "__metadata__": {"format": "pt"},
        **{
            name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]}
            for name, shape in tensors.items()
        },
    }
    data = json.dumps(head).encode()
    path.write_bytes(len(data).to_bytes(8, "little") + data)


def test_llama_2_has_6_738_415_616_parameters() -> None:
    sized = from_config(json.dumps(LLAMA), "config.json")
    assert sized.model == Model(6_738_415_616, 131_072_000)
    assert sized.shape is not None
    assert (sized.shape.layers, sized.shape.head_dim, sized.shape.gated) == (32, 128, True)


def test_a_model_of_text_and_pictures_is_sized_by_its_text() -> None:
    text = json.dumps({"model_type": "some_vlm", "text_config": LLAMA})
    sized = from_config(text, "config.json")
    assert sized.model.params == 6_738_415_616
    assert sized.partial


def test_opt_350m_embeds_words_in_fewer_dimensions() -> None:
    config = {
        "model_type": "opt", "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "max_position_embeddings": 2048, "vocab_size": 50272,
        "word_embed_proj_dim": 512, "do_layer_norm_before": False,
    }  # fmt: skip
    assert from_config(json.dumps(config), "config.json").model.params == 331_196_416


@pytest.mark.parametrize("key", ["n_embed", "hidden_size"])
def test_bloom_is_read_by_either_name_of_its_width(key: str) -> None:
    config = {"model_type": "bloom", key: 1024, "n_layer": 24, "n_head": 16, "vocab_size": 250880}
    assert from_config(json.dumps(config), "config.json").model.params == 559_214_592


def test_an_unknown_family_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError) as caught:
        from_config('{"model_type": "rwkv"}', "config.json")
    assert [problem.rule for problem in caught.value.problems] == ["unknown-model-type"]
    assert "--meta" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "path", "rule"),
    [
        ('{"zero_optimization": {"stage": 3}}', "model_type", "missing-key"),
        ("[]", "", "wrong-type"),
        ('{"model_type": "llama"}', "hidden_size", "missing-key"),
        ('{"model_type": ["llama"]}', "model_type", "unknown-model-type"),
        (json.dumps({**LLAMA, "num_attention_heads": 0}), "", "invalid-sizes"),
        (json.dumps({**LLAMA, "hidden_size": "wide"}), "", "invalid-sizes"),
        ('{"model_type": "x", "text_config": 3}', "", "wrong-type"),
    ],
)
def test_a_wrong_config_is_refused_with_the_key(text: str, path: str, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_config(text, "config.json")
    assert [(found.path, found.rule) for found in caught.value.problems] == [(path, rule)]


def test_broken_json_is_refused_with_its_position() -> None:
    with pytest.raises(ConfigError) as caught:
        from_config("{", "config.json")
    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (1, 2)


def test_the_heads_of_safetensors_give_the_parameters_and_the_largest_module(
    tmp_path: Path,
) -> None:
    weights(tmp_path / "a.safetensors", {"a.weight": [10, 20], "a.bias": [20]})
    weights(tmp_path / "b.safetensors", {"b.weight": [100]})
    names = {"a.weight": "a.safetensors", "a.bias": "a.safetensors", "b.weight": "b.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 640}, "weight_map": names}))
    assert from_path(index).model == Model(320, 220)
    assert from_path(tmp_path / "b.safetensors").model == Model(100, 100)
    assert from_path(tmp_path).model == Model(320, 220)


def test_an_index_without_its_files_needs_the_config(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"metadata": {"total_size": 2 * 6_738_415_616}, "weight_map": {"a": "x"}})
    )
    with pytest.raises(ConfigError) as caught:
        from_path(index)
    assert [problem.rule for problem in caught.value.problems] == ["missing-weights"]
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert from_path(index).model == Model(6_738_415_616, 131_072_000)


def test_a_directory_is_read_by_its_config_first(tmp_path: Path) -> None:
    weights(tmp_path / "a.safetensors", {"a.weight": [10, 20]})
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert from_path(tmp_path).model.params == 6_738_415_616


@pytest.mark.parametrize(
    ("name", "meant"),
    [("7B", "--params 7B"), ("1.5e9", "--params 1.5e9"), ("org/model", "config.json")],
)
def test_a_model_that_is_not_a_file_has_a_hint(name: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_path(Path(name))
    assert meant in str(caught.value.hint)


def test_what_is_not_there_or_no_weights_is_said(tmp_path: Path) -> None:
    with pytest.raises(DslaunchError, match=r"no config\.json"):
        from_path(tmp_path)
    with pytest.raises(DslaunchError, match="No such file"):
        from_path(tmp_path / "config.json")
    pointer = tmp_path / "a.safetensors"
    for text in ("version https://git-lfs.github.com/spec/v1\n", "", "\x02\0\0\0\0\0\0\0{}"):
        pointer.write_text(text)
        with pytest.raises(DslaunchError, match="not a safetensors file"):
            from_path(pointer)


@pytest.mark.parametrize("shape", ["x", [-1, 5], [True], {"a": 1}, [1.5]])
def test_a_head_whose_shapes_are_none_is_no_safetensors(tmp_path: Path, shape: object) -> None:
    weights(tmp_path / "a.safetensors", {"a.weight": shape})
    with pytest.raises(ConfigError, match="not a safetensors file"):
        from_path(tmp_path / "a.safetensors")


@pytest.mark.parametrize(("text", "rule"), [("[" * 100_000, "too-deep"), ("1" * 5000, "too-large")])
def test_a_text_that_no_parser_takes_is_refused(tmp_path: Path, text: str, rule: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        from_path(tmp_path)
    assert [problem.rule for problem in caught.value.problems] == [rule]


@pytest.mark.parametrize("size", [10**19, 10**400])
def test_a_model_that_is_larger_than_any_is_refused(tmp_path: Path, size: int) -> None:
    weights(tmp_path / "a.safetensors", {"a.weight": [size]})
    config = {**LLAMA, "vocab_size": size}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in ("a.safetensors", "config.json"):
        with pytest.raises(ConfigError) as caught:
            from_path(tmp_path / name)
        assert [problem.rule for problem in caught.value.problems] == ["too-large"]
