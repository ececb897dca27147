"""Mistakes from bug reports: each is named by its rule, at its key, with what to do about it.

The configs are made for these tests; the source says who made the mistake, or what it comes from.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from dslaunch.deepspeed import rules
from dslaunch.deepspeed.batch import Parallelism
from dslaunch.deepspeed.lint import read, unreadable, verdict
from dslaunch.deepspeed.linted_config import LintedConfig, Reader
from dslaunch.deepspeed.schema import table
from dslaunch.errors import ConfigError
from dslaunch.lint import Remark

RANKS = 8


def remarks(config: Any, reader: Reader = "native", world: int = RANKS) -> tuple[Remark, ...]:
    written = config if isinstance(config, str) else json.dumps(config)
    try:
        document, reader = read(written, "ds.json", reader)
    except ConfigError as error:
        return unreadable(error, written)
    subject = LintedConfig(document, table(), reader, parallelism=Parallelism(world))
    return verdict(subject).kept


def nested(path: str, value: Any) -> dict[str, Any]:
    for step in reversed(path.split(".")):
        value = {step: value}
    return {"train_micro_batch_size_per_gpu": 1, **value}


def scheduled(name: str, **params: Any) -> dict[str, Any]:
    return nested("scheduler", {"type": name, "params": params})


STEPS, MICRO = "gradient_accumulation_steps", "train_micro_batch_size_per_gpu"
NATIVE: list[tuple[str, Any, str, str, str]] = [
    # source, config, rule, path, what the fix names
    ("DeepSpeed#774", nested("zero_optimisation", {"stage": 2}), "ignored-key",
     "zero_optimisation", "zero_optimization"),
    ("DeepSpeed#1809, composer#667", nested("zero_stage", 3), "ignored-key", "zero_stage",
     "zero_optimization.stage"),
    ("DeepSpeed#1858", nested("zero_optimization.stage3_param_persitence_threshold", 1),
     "unknown-key", "zero_optimization.stage3_param_persitence_threshold",
     "stage3_param_persistence_threshold"),
    ("DeepSpeed#2721", nested("zero_optimization.aio", {"block_size": 1}), "unknown-key",
     "zero_optimization.aio", "top level"),
    ("DeepSpeed#1935", nested("offload_optimizer", {"device": "cpu"}), "ignored-key",
     "offload_optimizer", "zero_optimization.offload_optimizer"),
    ("Lightning#17790", nested("zero_optimization.offload_optimizer", True), "wrong-value",
     "zero_optimization.offload_optimizer", '"device": "cpu"'),
    ("FastChat#436", nested("zero_optimization", True), "deprecated-key", "zero_optimization",
     '"stage": 1'),
    ("DeepSpeed, zero/config.py", nested("zero_optimization", False), "deprecated-key",
     "zero_optimization", '"stage": 0'),
    ("gpt-neox#469", nested("zero_optimization", {"stage": 2, "cpu_offload": True}),
     "deprecated-key", "zero_optimization.cpu_offload", "offload_optimizer"),
    ("llm-rankers#2", nested("bf16.loss_scale", 0), "unknown-key", "bf16.loss_scale",
     "remove it"),
    ("llm-rankers#2", nested("bf16.initial_scale_power", 10), "unknown-key",
     "bf16.initial_scale_power", "remove it"),
    ("DeepSpeedExamples#733", nested("bf16.loss_scale_window", 100), "unknown-key",
     "bf16.loss_scale_window", "remove it"),
    ("trlx ds_config_gptj.json", nested("fp16.opt_level", "O2"), "unknown-key", "fp16.opt_level",
     "remove it"),
    ("gpt-neox tune.json", nested("fp16.fp16", True), "unknown-key", "fp16.fp16", "enabled"),
    ("trlx ds_config_trlx.json", nested("fp16.min_loss_scale", 0.5), "wrong-value",
     "fp16.min_loss_scale", "integer"),
    ("torch GradScaler", nested("fp16.growth_interval", 9), "unknown-key", "fp16.growth_interval",
     "loss_scale_window"),
    ("apex", nested("fp16.init_scale", 65536), "unknown-key", "fp16.init_scale",
     "initial_scale_power"),
    ("Trainer argument", nested("fp16", True), "wrong-type", "fp16", '"enabled": true'),
    ("Trainer argument", nested("bf16", True), "wrong-type", "bf16", '"enabled": true'),
    ("Arctic-Platform#78", {MICRO: 1, "fp16": {"enabled": True}, "bf16": {"enabled": True}},
     "both-precisions", "bf16.enabled", "to false"),
    ("DeepSpeed#656, DeepSpeed#102",
     nested("optimizer", {"type": "Adam", "params": {"max_grad_norm": 1.0}}), "max-grad-norm",
     "optimizer.params.max_grad_norm", "gradient_clipping"),
    ("axolotl#1381", nested("max_grad_norm", 1.0), "ignored-key", "max_grad_norm",
     "gradient_clipping"),
    ("Megatron --clip-grad", nested("clip_grad", 1.0), "ignored-key", "clip_grad",
     "gradient_clipping"),
    ("Lightning Trainer", nested("gradient_clip_val", 1.0), "ignored-key", "gradient_clip_val",
     "gradient_clipping"),
    ("Lightning Trainer", nested("accumulate_grad_batches", 4), "ignored-key",
     "accumulate_grad_batches", STEPS),
    ("DeepSpeed#6480", nested("zero_optimization.gradient_clipping", 1.0), "unknown-key",
     "zero_optimization.gradient_clipping", "top level"),
    ("DeepSpeed docs", {"micro_batch_per_gpu": 4, "train_batch_size": 32}, "ignored-key",
     "micro_batch_per_gpu", MICRO),
    ("OpenRLHF#459", {"micro_train_batch_size": 4, "train_batch_size": 32}, "ignored-key",
     "micro_train_batch_size", MICRO),
    ("TrainingArguments", {"per_device_train_batch_size": 4, "train_batch_size": 32},
     "ignored-key", "per_device_train_batch_size", MICRO),
    ("Megatron --global-batch-size", nested("global_batch_size", 64), "ignored-key",
     "global_batch_size", "train_batch_size"),
    ("Megatron argument", nested("tensor_model_parallel_size", 2), "ignored-key",
     "tensor_model_parallel_size", "tensor_parallel.autotp_size"),
    ("gpt-neox argument", nested("model-parallel-size", 2), "ignored-key", "model-parallel-size",
     "tensor_parallel.autotp_size"),
    ("gpt-neox argument", nested("pipe-parallel-size", 2), "ignored-key", "pipe-parallel-size",
     "PipelineModule"),
    ("accelerate plugin", nested("offload_optimizer_device", "cpu"), "ignored-key",
     "offload_optimizer_device", "zero_optimization.offload_optimizer.device"),
    ("accelerate plugin", nested("offload_param_device", "cpu"), "ignored-key",
     "offload_param_device", "zero_optimization.offload_param.device"),
    ("accelerate#936", nested("zero3_save_16bit_model", True), "ignored-key",
     "zero3_save_16bit_model", "stage3_gather_16bit_weights_on_model_save"),
    ("accelerate#936", nested("zero3_init_flag", True), "ignored-key", "zero3_init_flag",
     "accelerate"),
    ("accelerate config", nested("mixed_precision", "bf16"), "ignored-key", "mixed_precision",
     "bf16.enabled"),
    ("DeepSpeed#4904", nested("num_train_epochs", 1), "ignored-key", "num_train_epochs",
     "no epochs"),
    ("DeepSpeed#4904", nested("seed", 42), "ignored-key", "seed", "--seed"),
    ("pipeline engine", nested("pipeline.micro_batch_size", 4), "ignored-key",
     "pipeline.micro_batch_size", MICRO),
    ("TrainingArguments", nested("gradient_checkpointing", True), "ignored-key",
     "gradient_checkpointing", "gradient_checkpointing_enable"),
    ("TrainingArguments", nested("logging_steps", 10), "ignored-key", "logging_steps",
     "steps_per_print"),
    ("TrainingArguments", nested("learning_rate", 1e-5), "ignored-key", "learning_rate",
     "optimizer.params.lr"),
    ("torchrun", nested("nproc_per_node", 8), "ignored-key", "nproc_per_node", "launcher"),
    ("wandb", nested("wandb_project", "x"), "ignored-key", "wandb_project", "project"),
    ("wandb", nested("wandb", {"enabled": True, "entity": "x"}), "unknown-key", "wandb.entity",
     "team"),
    ("ms-swift#491", scheduled("CosineLR"), "scheduler", "scheduler.type", "WarmupCosineLR"),
    ("LlamaFactory#1515", scheduled("cosine"), "scheduler", "scheduler.type", "WarmupCosineLR"),
    ("ms-swift#1906", scheduled("LinearDecayLR"), "scheduler", "scheduler.type", "WarmupDecayLR"),
    ("Megatron WSD", scheduled("WarmupStableDecayLR"), "scheduler", "scheduler.type", "script"),
    ("DeepSpeed schedules", scheduled("warmuplr"), "scheduler", "scheduler.type", "WarmupLR"),
    ("torch names", scheduled("CosineAnnealing"), "scheduler", "scheduler.type",
     "CosineAnnealingLR"),
    ("torch names", scheduled("CosineAnnealingLR"), "missing-parameter", "scheduler.params",
     "T_max"),
    ("torch names", scheduled("LambdaLR"), "scheduler", "scheduler.type",
     "deepspeed.initialize"),
    ("openfold#290", scheduled("WarmupDecayLR", warmup_num_steps=10), "missing-parameter",
     "scheduler.params", "total_num_steps"),
    ("DeepSpeed#771", scheduled("WarmupLR", warmup_num_steps=0), "warmup-steps",
     "scheduler.params.warmup_num_steps", "1 or more"),
    ("BELLE#558", scheduled("WarmupLR", warmup_num_steps="Auto"), "misspelt-auto",
     "scheduler.params.warmup_num_steps", '"auto"'),
    ("TrainingArguments", scheduled("WarmupLR", warmup_steps=5), "unknown-parameter",
     "scheduler.params.warmup_steps", "warmup_num_steps"),
    ("TrainingArguments", nested("optimizer", {"type": "AdamW", "params": {"learning_rate": 1}}),
     "unknown-parameter", "optimizer.params.learning_rate", "lr"),
    ("DeepSpeed optimizers", nested("optimizer", {"type": "AdamW", "lr": 1e-4}), "ignored-key",
     "optimizer.lr", "optimizer.params"),
    ("DeepSpeed optimizers", nested("optimizer", {"name": "AdamW", "params": {}}), "no-type",
     "optimizer", "optimizer.type"),
    ("DeepSpeed#281", {MICRO: 1, "zero_optimization": {"stage": 2},
     "optimizer": {"type": "SGD", "params": {"lr": 1}}}, "untested-optimizer", "optimizer.type",
     "zero_allow_untested_optimizer"),
    ("bitsandbytes", nested("optimizer", {"type": "AdamW8bit", "params": {}}), "optimizer",
     "optimizer.type", "script"),
    ("DeepSpeed#6914", {"train_batch_size": 8, MICRO: 2, STEPS: 1}, "batch", "train_batch_size",
     "train_batch_size 16"),
    ("OpenRLHF#346", {"train_batch_size": 256, MICRO: 2, STEPS: 18}, "batch", "train_batch_size",
     "train_batch_size 288"),
    ("DeepSpeed#17", {"train_batch_size": 12}, "batch", "train_batch_size", "16"),
    ("LlamaFactory#1116", {MICRO: 1, STEPS: "8"}, "wrong-batch", STEPS, "write 8"),
    ("DeepSpeed#1270", {MICRO: "auto"}, "auto-batch", MICRO, "Hugging Face"),
    ("DeepSpeed#1270", {MICRO: 1, "gradient_clipping": "auto"}, "auto-unresolved",
     "gradient_clipping", "write a value"),
    ("DeepSpeed#1463 of accelerate", {MICRO: 1, "zero_optimization": {
     "stage": 3, "offload_param": {"device": "nvme"}}}, "nvme-path",
     "zero_optimization.offload_param.device", "nvme_path"),
    ("DeepSpeed#1403", {MICRO: 1, "zero_optimization": {
     "stage": 2, "offload_param": {"device": "cpu"}}}, "offload-stage",
     "zero_optimization.offload_param.device", "stage to 3"),
    ("DeepSpeed, #872", nested("zero_optimization.stage", 3), "not-gathered",
     "zero_optimization.stage", "stage3_gather_16bit_weights_on_model_save"),
    ("DeepSpeed#238", '{"train_batch_size": 8, "train_batch_size": 8}', "duplicate-key",
     "train_batch_size", "keep one"),
    ("DeepSpeed config", nested("zero_optimization.stage", 4), "wrong-value",
     "zero_optimization.stage", "0 or 1 or 2 or 3"),
    ("DeepSpeed config", nested("zero_optimization", None), "wrong-type", "zero_optimization",
     '"stage"'),
    ("DeepSpeed config", nested("zero_optimization.overlap_comm", "yes please"), "wrong-value",
     "zero_optimization.overlap_comm", "true or false"),
    ("torch GradScaler", nested("fp16.loss_scale", "dynamic"), "wrong-value", "fp16.loss_scale",
     "write 0"),
    ("accelerate config", nested("zero_optimization.offload_optimizer.device", "gpu"),
     "wrong-value", "zero_optimization.offload_optimizer.device", '"none"'),
    ("Megatron --tp-size", nested("tensor_parallel.tp_size", 2), "unknown-key",
     "tensor_parallel.tp_size", "autotp_size"),
    ("accelerate, Infinity", '{"train_batch_size": 8,\n "steps_per_print": Infinity\n}',
     "unchecked-type", "steps_per_print", "integer"),
]  # fmt: skip

TRAINER: list[tuple[str, Any, str, str, str]] = [
    ("KnowLM#87", {"bf16": {"enabled": "auto"}}, "no-zero", "", '"zero_optimization"'),
    ("LlamaFactory#3493", nested("bf16.enabled", "true"), "hf-text", "bf16.enabled", '"auto"'),
    ("LlamaFactory#3493", nested("fp16.enabled", "false"), "hf-text", "fp16.enabled", '"auto"'),
    ("transformers#10330", nested("optimizer", {"type": "AdamW", "params": {"lr": "5e-5"}}),
     "hf-text", "optimizer.params.lr", '"auto"'),
    ("FastChat#436", {"zero_optimization": True}, "wrong-value", "zero_optimization",
     '"stage": 1'),
    ("accelerate is_zero3", {"zero_optimization": {"stage": "3"}}, "hf-text",
     "zero_optimization.stage", "write 3"),
    ("accelerate 1.15", {"zero_optimization": {"stage": "auto"}}, "auto-stage",
     "zero_optimization.stage", "1, 2 or 3"),
    ("accelerate#1644", {"zero_optimization": {"stage": 2, "sub_group_size": "auto"}},
     "auto-unresolved", "zero_optimization.sub_group_size", "write a value"),
    ("dolly#161", '{"zero_optimization": {"stage": 2} // two\n}', "not-json", "", "comments"),
    ("dolly#161", '{"zero_optimization": {"stage": 2},}', "not-json", "", "write JSON"),
    ("openfold#78", {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "Auto"}},
     "misspelt-auto", "bf16.enabled", '"auto"'),
    ("Hugging Face guide", {"zero_optimization": {"stage": 2},
     "activation_checkpointing": {"partition_activations": True}}, "hf-activation-checkpointing",
     "activation_checkpointing", "--gradient_checkpointing"),
]  # fmt: skip


def check(config: Any, reader: Reader, rule: str, path: str, word: str) -> None:
    found = {(r.rule, r.path): r for r in remarks(config, reader)}
    assert (rule, path) in found, list(found)
    assert word in (found[rule, path].fix or "")
    assert all(r.fix for r in found.values() if r.level == "error")


@pytest.mark.parametrize(
    ("source", "config", "rule", "path", "word"), NATIVE, ids=[f"{m[0]}-{m[3]}" for m in NATIVE]
)
def test_a_mistake_is_named_with_what_to_do(
    source: str, config: Any, rule: str, path: str, word: str
) -> None:
    check(config, "native", rule, path, word)


@pytest.mark.parametrize(
    ("source", "config", "rule", "path", "word"), TRAINER, ids=[f"{m[0]}-{m[3]}" for m in TRAINER]
)
def test_a_mistake_under_the_trainer_is_named_with_what_to_do(
    source: str, config: Any, rule: str, path: str, word: str
) -> None:
    check(config, "hf", rule, path, word)


@pytest.mark.parametrize(
    "key",
    [
        "num_epochs", "seed", "model-parallel-size", "num_layers", "batch_size",
        "data_path", "world_size", "warmup_ratio", "lora_r", "hidden_size",
    ],
)  # fmt: skip
def test_a_name_of_another_program_is_not_taken_for_one_that_looks_alike(key: str) -> None:
    (remark,) = [r for r in remarks(nested(key, 1)) if r.path == key]
    assert "did you mean" not in (remark.fix or "")
    assert "optimizer.params" not in (remark.fix or "")
    assert "data_efficiency" not in (remark.fix or "")
    assert remark.edits == ()


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_python_reads_are_json_for_hugging_face(value: str) -> None:
    config = f'{{"zero_optimization": {{"stage": 2}}, "steps_per_print": {value}}}'
    found = {r.rule for r in remarks(config, "hf")}
    assert "not-json" not in found
    assert ("unchecked-type" in found) == (value == "NaN")


@pytest.mark.parametrize(
    "config",
    [
        '{"train_batch_size" : CONFIG_BATCH_SIZE,\n "zero_optimization": {"stage": ZERO_STAGE}\n}',
        '{"train_batch_size": "${GBS}", "fp16": {"enabled": "${FP16}"}}',
        '{"train_batch_size": {{ batch_size }}, "fp16": {"enabled": {{ fp16 }}}}',
        '{% if zero %}{"zero_optimization": {"stage": 2}}{% endif %}',
        '{"train_batch_size": "<batch size>", "no_such_key": 1}',
        '{"train_batch_size": "@GBS@", "fp16": {"loss_scale": "%SCALE%"}}',
        '{"train_batch_size": "{gbs}", "gradient_clipping": "__CLIP__"}',
    ],
)
def test_a_template_is_one_remark(config: str) -> None:
    assert [(r.rule, r.level) for r in remarks(config)] == [("template", "warning")]


@pytest.mark.parametrize(
    "config",
    [
        nested("checkpoint.writer", {"type": "FAST"}),
        nested("tensorboard.output_path", "${HOME}/runs"),
        nested("zero_optimization", {"stage": 3, "offload_param": {"device": "nvme",
               "nvme_path": "/scratch/MY_USER"}}),
    ],
)  # fmt: skip
def test_a_text_in_capitals_is_no_template(config: dict[str, Any]) -> None:
    assert "template" not in {r.rule for r in remarks(config)}


def test_comments_are_one_remark() -> None:
    lines = "".join(f'// note {n}\n"k_{n}": 1, # more\n' for n in range(30))
    config = "{\n" + lines + '"gradient_clipping": 1, # last\n}'
    assert len([r for r in remarks(config) if r.rule == "not-json"]) == 1
    kinds = [r.message.partition(",")[0] for r in remarks(config, "hf") if r.rule == "not-json"]
    assert kinds == ["comment", "trailing comma: not JSON"]


def test_many_unknown_keys_with_the_same_advice_are_one_remark() -> None:
    config = nested("k_0", 1) | {f"own_setting_{n}": n for n in range(40)}
    (remark,) = remarks(config)
    assert (remark.rule, remark.level) == ("ignored-key", "warning")


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"output_dir": "x", "num_train_epochs": 3, "learning_rate": 1, "fp16": True}, "Trainer"),
        ({"compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED",
          "num_machines": 2, "mixed_precision": "bf16"}, "accelerate"),
        ({"architectures": ["X"], "model_type": "llama", "hidden_size": 64}, "config.json"),
        ({"results": {}, "versions": {}, "config": {}}, "no known keys"),
        ({"deepspeed": {"zero_optimization": {"stage": 2}}, "seeds": 1}, "below deepspeed"),
    ],
)  # fmt: skip
def test_another_programs_file_is_one_remark(config: dict[str, Any], what: str) -> None:
    (remark,) = remarks(config)
    assert (remark.rule, remark.level) == ("other-file", "error")
    assert what in remark.message


@pytest.mark.parametrize(
    "config",
    [
        {"zero_stage": 3, "own_a": 1, "own_b": 2},
        {"offload_parm": {"device": "cpu"}, "own_a": 1, "own_b": 2},
        {"curriculum_learning": {"enabled": True}, "own_a": 1, "own_b": 2},
        {"_comment": "nothing yet"},
        {},
    ],
)
def test_a_config_of_mistakes_is_still_taken_for_a_config(config: dict[str, Any]) -> None:
    assert "other-file" not in {r.rule for r in remarks(config)}


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("offload_parm", "zero_optimization.offload_param"),
        ("grad_clpi", "gradient_clipping"),
        ("micro_batch_per_gpus", "train_micro_batch_size_per_gpu"),
        ("zero_stge", "zero_optimization.stage"),
    ],
)
def test_for_a_misspelled_name_of_another_program_the_key_is_suggested(
    key: str, meant: str
) -> None:
    (remark,) = remarks(nested(key, 1))
    assert (remark.rule, remark.path) == ("ignored-key", key)
    assert remark.fix == f"write {meant}"


@pytest.mark.parametrize("name", ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR"])
def test_for_a_ratio_the_number_of_steps_is_suggested(name: str) -> None:
    (remark,) = (r for r in remarks(scheduled(name, warmup_ratio=0.1)) if "ratio" in r.path)
    assert remark.fix is not None
    assert "warmup_num_steps, in steps" in remark.fix


@pytest.mark.parametrize("value", ["wrong", -1, [], {}, None])
def test_every_error_at_any_key_says_what_to_do(value: Any) -> None:
    paths = [key.path for key in table().keys.values() if "[]" not in key.path]
    silent = set()
    for path in paths:
        for reader in ("native", "hf"):
            for remark in remarks(nested(path.replace("<name>", "own"), value), reader):
                if remark.level == "error" and not remark.fix:
                    silent.add((remark.rule, remark.path, remark.message))
    assert not silent


RULE_FILES = sorted(Path(rules.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.stem)
def test_no_rule_makes_an_error_without_a_way_out(path: Path) -> None:
    for call in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(call, ast.Call):
            continue
        if getattr(call.func, "attr", "") not in ("remark", "error"):
            continue
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        fix = given.get("fix")
        nothing = fix is None or (isinstance(fix, ast.Constant) and not fix.value)
        assert not nothing, f"{path.name}:{call.lineno}"


def test_a_config_of_gpt_neox_is_one_remark() -> None:
    config = nested("num-layers", 2) | {
        "hidden-size": 8, "pipe-parallel-size": 1, "train-iters": 9, "weight-decay": 0.1,
        "split": "1",
    }  # fmt: skip
    assert [r.rule for r in remarks(config)] == ["gpt-neox"]


def test_values_to_try_are_for_the_autotuner() -> None:
    config = nested("zero_optimization.stage", [0, 1, 2, 3])
    assert "wrong-value" in {r.rule for r in remarks(config)}
    tuned = config | {"autotuning": {"enabled": True}, MICRO: "auto"}
    assert {r.level for r in remarks(tuned)} <= {"info", "warning"}
