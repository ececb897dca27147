"""Our figures beside the real DeepSpeed's, a real run's, and the real models' of transformers."""

from __future__ import annotations

import copy
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.memory_runs import Case
from tests.conformance.published import PUBLISHED

from dslaunch.deepspeed.activations import ERROR, MicroBatch, layer_bytes
from dslaunch.deepspeed.architectures import TEXT_FAMILIES
from dslaunch.deepspeed.communication import HOPS, collectives
from dslaunch.deepspeed.memory import (
    FASTEST_FIRST,
    GIB,
    Machines,
    Model,
    Strategy,
    deepspeed_estimate,
)
from dslaunch.deepspeed.model_size import from_config, on_meta
from dslaunch.errors import DslaunchError

pytestmark = [
    pytest.mark.deepspeed,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),
]
T0_3B = Model(2_783_959_040, 65_798_144)
GRID = [
    (Model(params, largest), Machines(nodes, gpus), factor)
    for params, largest in [
        (10**6, 10**4),
        (2_783_959_040, 65_798_144),
        (7 * 10**9 + 1, 131_072_001),
    ]
    for nodes in (1, 2, 3, 7, 64)
    for gpus in (1, 2, 3, 8, 16)
    for factor in (1.0, 1.5)
]


@pytest.fixture(scope="module")
def estimators() -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("deepspeed")
        from deepspeed.runtime.zero import stage3, stage_1_and_2
    return stage3, stage_1_and_2


@pytest.mark.parametrize("strategy", [s for s in FASTEST_FIRST if s.stage == 2], ids=str)
def test_zero_2_is_estimated_to_the_byte_as_deepspeed_does(
    estimators: Any, strategy: Strategy
) -> None:
    _, stage_1_and_2 = estimators
    for model, machines, factor in GRID:
        need = deepspeed_estimate(model, machines, strategy, factor)
        assert need
        assert (need.cpu, need.gpu) == stage_1_and_2.estimate_zero2_model_states_mem_needs(
            model.params,
            machines.gpus_per_node,
            machines.nodes,
            strategy.optimizer == "cpu",
            factor,
        )


@pytest.mark.parametrize(
    "strategy", [s for s in FASTEST_FIRST if s.stage == 3 and s.optimizer != "nvme"], ids=str
)
def test_zero_3_is_estimated_to_the_byte_as_deepspeed_does(
    estimators: Any, strategy: Strategy
) -> None:
    stage3, _ = estimators
    for model, machines, factor in GRID:
        need = deepspeed_estimate(model, machines, strategy, factor)
        assert need
        cpu, gpu, _ = stage3.estimate_zero3_model_states_mem_needs(
            model.params, model.largest_layer, machines.gpus_per_node, machines.nodes,
            strategy.optimizer == "cpu", strategy.params == "cpu", strategy.zero_init, factor,
        )  # fmt: skip
        assert (need.cpu, need.gpu) == (cpu, gpu)


def test_what_deepspeed_prints_are_our_figures_in_its_order(
    estimators: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    stage3, _ = estimators
    stage3.estimate_zero3_model_states_mem_needs_all_cold(T0_3B.params, T0_3B.largest_layer, 8, 2)
    printed = re.findall(r"([\d.]+)GB \| +([\d.]+)GB", capsys.readouterr().out)
    ordered = sorted(
        (s for s in FASTEST_FIRST if s.stage == 3 and s.optimizer != "nvme"),
        key=lambda s: (s.optimizer != "cpu", s.params != "cpu", not s.zero_init),
    )
    needs = [deepspeed_estimate(T0_3B, Machines(2, 8), s) for s in ordered]
    assert printed == [(f"{n.cpu / GIB:.2f}", f"{n.gpu / GIB:.2f}") for n in needs if n]


CPU: dict[str, Any] = {"device": "cpu"}
RUNS: list[tuple[Strategy, dict[str, Any]]] = [
    (Strategy(0), {}),
    (Strategy(1), {}),
    (Strategy(2), {}),
    (Strategy(1, "cpu"), {"offload_optimizer": CPU}),
    (Strategy(2, "cpu"), {"offload_optimizer": CPU}),
    (Strategy(3), {}),
    (Strategy(3, "cpu", "cpu"), {"offload_optimizer": CPU, "offload_param": CPU}),
]
RANKS = 2
CASE = Case(hidden=1024, layers=16, ranks=RANKS)
MEASURED_ERROR = 0.05
"""How far a run without offload is from its estimate, as a part of it, at most."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks on the CPU took, for each of RUNS."""
    pytest.importorskip("deepspeed")
    # give freed memory back at once, so that what is resident is what is in use
    env = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu",
           "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}  # fmt: skip
    return CASE.measured(tmp_path_factory.mktemp("memory"), RUNS, env)


@pytest.mark.long  # seven trainings; the estimates are compared with DeepSpeed's own above
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("number", range(len(RUNS)), ids=[str(s) for s, _ in RUNS])
def test_a_real_run_takes_what_was_estimated(runs: list[dict[str, Any]], number: int) -> None:
    strategy, run = RUNS[number][0], runs[number]
    assert run["params"] == CASE.model.params
    gpu, cpu = CASE.estimates(strategy)
    if strategy.optimizer == "gpu":
        assert run["peak"] == pytest.approx(gpu, rel=MEASURED_ERROR)
    else:
        # DeepSpeed's factor for the CPU is meant to be enough: it is, and not by much
        assert 0.7 * (gpu + cpu) < run["peak"] < gpu + cpu


@pytest.mark.long  # the same trainings
@pytest.mark.parametrize("number", range(len(RUNS)), ids=[str(s) for s, _ in RUNS])
def test_a_real_run_sends_what_was_estimated(runs: list[dict[str, Any]], number: int) -> None:
    names = {
        "all-reduce": "all_reduce",
        "all-gather": "all_gather_into_tensor",
        "reduce-scatter": "reduce_scatter_tensor",
    }
    machines = Machines(1, RANKS)
    ring = (RANKS - 1) / RANKS
    expected = {
        names[each.operation]: each.sent / HOPS[each.operation] / ring
        for each in collectives(CASE.model, machines, RUNS[number][0])
    }
    # single numbers, such as the norm of the gradients, are reduced too
    sent = {name: size for name, size in runs[number]["sent"].items() if size > 1000}
    assert sent == pytest.approx(expected, rel=1e-4)


def _transformers() -> Any:
    return pytest.importorskip("transformers")


@pytest.mark.long  # the published models have most of these families
@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_parameters_are_counted_as_transformers_makes_the_model(
    family: str, tmp_path: Path
) -> None:
    config = _transformers().AutoConfig.for_model(family)
    heads = {"t5": "T5ForConditionalGeneration", "mt5": "MT5ForConditionalGeneration",
             "bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM",
             "xlm-roberta": "XLMRobertaForMaskedLM",
             "camembert": "CamembertForMaskedLM"}  # fmt: skip
    config.architectures = [heads[family]] if family in heads else None
    config.save_pretrained(tmp_path)
    full = config.to_json_string(use_diff=False)
    assert from_config(full, "config.json").model == on_meta(tmp_path).model


UNTIED = ("Flan-T5-XL", "mT5-base")
"""Their weights have an output embedding of their own, so transformers does not tie it when it
loads them; a model made without weights is tied (5.23.0, configuration_t5.py)."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_is_counted_as_transformers_makes_it(name: str) -> None:
    transformers = _transformers()
    import torch

    config = PUBLISHED[name]
    with torch.device("meta"):
        kind = getattr(transformers, config["architectures"][0])
        model = kind(transformers.AutoConfig.for_model(**copy.deepcopy(config)))
    model.tie_weights()
    expected = sum(p.numel() for p in model.parameters())
    if name in UNTIED:
        expected += config["vocab_size"] * config["d_model"]
    largest = max(sum(p.numel() for p in m.parameters(recurse=False)) for m in model.modules())
    assert from_config(json.dumps(config), name).model == Model(expected, largest)


def test_at_least_50_published_models_are_counted() -> None:
    assert len(PUBLISHED) >= 50


def test_counting_with_transformers_never_runs_the_code_of_a_model(tmp_path: Path) -> None:
    _transformers()
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text("import pathlib\npathlib.Path(__file__ + '.ran').touch()\n")
    with pytest.raises(DslaunchError, match="transformers cannot build"):
        on_meta(tmp_path)
    assert not list(tmp_path.rglob("*.ran"))


def test_a_name_that_is_no_model_of_transformers_is_not_called(tmp_path: Path) -> None:
    _transformers()
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1, "vocab_size": 16,
              "n_positions": 8, "architectures": ["Trainer"]}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert on_meta(tmp_path).model == from_config(json.dumps(config), "config.json").model


SMALL = {"hidden_size": 256, "num_attention_heads": 8, "vocab_size": 512, "pad_token_id": 0}
GROUPED = {**SMALL, "intermediate_size": 704, "num_key_value_heads": 2}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {**SMALL, "intermediate_size": 704},
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 32},
    "gemma": {**GROUPED, "head_dim": 32},
    "phi3": GROUPED,
    "mixtral": GROUPED,
    "gpt2": {"n_embd": 256, "n_head": 8, "vocab_size": 512},
    "gpt_neox": {**SMALL, "intermediate_size": 1024},
    "opt": {**SMALL, "ffn_dim": 1024, "word_embed_proj_dim": 256},
    "glm4": {**GROUPED, "head_dim": 32},
    "cohere": GROUPED,
    "stablelm": GROUPED,
    "gemma3_text": {**GROUPED, "head_dim": 32},
    "olmo2": {**SMALL, "intermediate_size": 704},
    "starcoder2": GROUPED,
    "falcon": {
        "hidden_size": 256, "num_attention_heads": 8, "vocab_size": 512, "num_kv_heads": 2,
        "new_decoder_architecture": True, "bias": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("family", SHAPES)
def test_activations_of_a_layer_are_within_the_stated_error(family: str) -> None:
    _transformers()
    key = "n_layer" if family == "gpt2" else "num_hidden_layers"
    saved = [_saved(family, {**SHAPES[family], key: layers}) for layers in (2, 4)]
    shape = saved[0][1]
    measured = (saved[1][0] - saved[0][0]) / 2
    assert layer_bytes(shape, MicroBatch(2, 64)) == pytest.approx(measured, rel=ERROR)


def _saved(family: str, sizes: dict[str, Any]) -> tuple[int, Any]:
    """Bytes that autograd keeps for the backward pass, and the model's shape."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(family, use_cache=False, **sizes)
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout", "attention_dropout"):
        setattr(config, name, 0.0)
    auto: Any = transformers.AutoModel
    model = auto.from_config(config, dtype=torch.bfloat16).train()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        place = tensor.untyped_storage().data_ptr()
        if place not in weights:
            kept[place] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(torch.randint(0, 500, (2, 64))).last_hidden_state.sum()
    size = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    return size, from_config(config.to_json_string(use_diff=False), "config.json").shape
