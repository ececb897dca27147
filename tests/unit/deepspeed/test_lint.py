"""Each rule at a config that has what it is about, and none of them at configs that are right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dslaunch.deepspeed import arguments, config_text, schema
from dslaunch.deepspeed.batch import Parallelism
from dslaunch.deepspeed.hardware import DirectoryFacts, NodeHardware
from dslaunch.deepspeed.lint import guess_reader, lint, unreadable
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.errors import ConfigError
from dslaunch.lint import Remark, fixed_text

OLD = schema.load("0.16.9")
NEW = schema.load("0.19.8")
BATCH = {"train_batch_size": 8}


def remarks(config: Any, table: schema.Table = NEW, **around: Any) -> tuple[Remark, ...]:
    written = config if isinstance(config, str) else json.dumps({**BATCH, **config})
    around.setdefault("parallelism", Parallelism(1))
    return lint(LintedConfig(config_text.parse(written, "ds.json"), table, **around))


def said(config: Any, **around: Any) -> list[tuple[str, str, str]]:
    return [(r.rule, r.level, r.path) for r in remarks(config, **around)]


def zero(**settings: Any) -> dict[str, Any]:
    return {"zero_optimization": settings}


CASES: list[tuple[dict[str, Any], tuple[str, str, str]]] = [
    ({"zero_optimisation": {}}, ("ignored-key", "error", "zero_optimisation")),
    ({"my_own": 1}, ("ignored-key", "warning", "my_own")),
    (zero(stage=3, overlap_com=1), ("unknown-key", "error", "zero_optimization.overlap_com")),
    (zero(aio={}), ("unknown-key", "error", "zero_optimization.aio")),
    (zero(grad_hooks=True), ("unknown-key", "error", "zero_optimization.grad_hooks")),
    ({"bf16": {"check_overflow": True}}, ("unknown-key", "error", "bf16.check_overflow")),
    ({"aio": {"thread_count": 1}}, ("ignored-key", "error", "aio.thread_count")),
    ({"amp": {"enabled": True}}, ("removed-key", "error", "amp")),
    (zero(mics_shard_size=2), ("removed-key", "error", "zero_optimization.mics_shard_size")),
    (zero(stage=4), ("wrong-value", "error", "zero_optimization.stage")),
    (zero(reduce_bucket_size="5e8x"),
     ("wrong-value", "error", "zero_optimization.reduce_bucket_size")),
    (zero(stage="2"), ("coerced-value", "info", "zero_optimization.stage")),
    ({"fp16": {"loss_scale": True}}, ("wrong-value", "error", "fp16.loss_scale")),
    ({"fp16": {"loss_scale": -1}}, ("wrong-value", "error", "fp16.loss_scale")),
    ({"optimizer": 1}, ("wrong-type", "error", "optimizer")),
    ({"wall_clock_breakdown": "yes"}, ("wrong-type", "error", "wall_clock_breakdown")),
    ({"communication_data_type": "fp64"}, ("wrong-type", "error", "communication_data_type")),
    ({"steps_per_print": "x"}, ("unchecked-type", "error", "steps_per_print")),
    ({"checkpoint": {"use_node_local_storage": "false"}},
     ("unchecked-type", "error", "checkpoint.use_node_local_storage")),
    (zero(cpu_offload=True, stage=2),
     ("deprecated-key", "warning", "zero_optimization.cpu_offload")),
    (zero(cpu_offload=True, offload_optimizer={}),
     ("old-and-new", "error", "zero_optimization.cpu_offload")),
    (zero(max_live_parameters=1, stage3_max_live_parameters=1),
     ("old-and-new", "error", "zero_optimization.max_live_parameters")),
    ({"zero_optimization": True}, ("deprecated-key", "warning", "zero_optimization")),
    ({"bf16": {}, "bfloat16": {}}, ("ignored-key", "error", "bfloat16")),
    ({"train_batch_size": "auto"}, ("auto-batch", "error", "train_batch_size")),
    (zero(stage="auto"), ("auto-unresolved", "error", "zero_optimization.stage")),
    ({"gradient_clipping": "auto"}, ("auto-unresolved", "error", "gradient_clipping")),
    ({"train_batch_size": "8"}, ("wrong-batch", "error", "train_batch_size")),
    ({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2},
     ("batch", "error", "train_batch_size")),
    ({"train_batch_size": None}, ("batch-missing", "warning", "")),
    (zero(stage=2, offload_param={"device": "cpu"}),
     ("offload-stage", "warning", "zero_optimization.offload_param.device")),
    (zero(stage=2, offload_optimizer={"device": "nvme", "nvme_path": "/x"}),
     ("nvme-stage", "error", "zero_optimization.offload_optimizer.device")),
    (zero(stage=3, offload_param={"device": "nvme"}),
     ("nvme-path", "error", "zero_optimization.offload_param.device")),
    (zero(stage=2, offload_optimizer={"device": "cpu", "ratio": 0.5}),
     ("partial-offload", "error", "zero_optimization.offload_optimizer.ratio")),
    (zero(stage=3), ("not-gathered", "warning", "zero_optimization.stage")),
    (zero(stage=2, stage3_max_live_parameters=1),
     ("stage3-key", "info", "zero_optimization.stage3_max_live_parameters")),
    ({**zero(stage=3), "gradient_allreduce_op": "sum"},
     ("sum-reduction", "error", "gradient_allreduce_op")),
    ({**zero(stage=2), "gradient_predivide_factor": 2.0},
     ("predivide", "error", "gradient_predivide_factor")),
    ({**zero(stage=3), "prescale_gradients": True}, ("prescale", "error", "prescale_gradients")),
    (zero(stage=3, compute_grad_norm=False),
     ("grad-norm", "error", "zero_optimization.compute_grad_norm")),
    (zero(legacy_stage1=True), ("legacy-stage1", "error", "zero_optimization.legacy_stage1")),
    (zero(stage=3, elastic_checkpoint=True),
     ("elastic-checkpoint", "warning", "zero_optimization.elastic_checkpoint")),
    ({"fp16": {"enabled": True}, "bf16": {"enabled": True}},
     ("both-precisions", "error", "bf16.enabled")),
    ({"fp16": {"enabled": True, "min_loss_scale": 0}},
     ("loss-scale", "error", "fp16.min_loss_scale")),
    ({"bf16": {"bf16_optimizer_states": True}},
     ("master-weights", "error", "bf16.bf16_optimizer_states")),
    ({"optimizer": {"params": {}}}, ("no-type", "error", "optimizer")),
    ({"optimizer": {"type": "AdamX"}}, ("optimizer", "error", "optimizer.type")),
    ({"optimizer": {"type": "OneBitAdam"}}, ("optimizer", "error", "optimizer.type")),
    ({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1.0}}},
     ("max-grad-norm", "error", "optimizer.params.max_grad_norm")),
    ({"optimizer": {"type": "Adam", "params": {"weight_dekay": 1.0}}},
     ("unknown-parameter", "error", "optimizer.params.weight_dekay")),
    ({**zero(stage=1), "optimizer": {"type": "Lamb"}},
     ("untested-optimizer", "error", "optimizer.type")),
    ({"optimizer": {"type": "Lamb"}, "fp16": {"enabled": True, "loss_scale": 128}},
     ("lamb-scale", "error", "fp16.loss_scale")),
    ({"scheduler": {"params": {}}}, ("no-type", "error", "scheduler")),
    ({"scheduler": {"type": "warmuplr", "params": {}}}, ("scheduler", "error", "scheduler.type")),
    ({"scheduler": {"type": "WarmupLR"}}, ("no-params", "error", "scheduler")),
    ({"scheduler": {"type": "WarmupDecayLR", "params": {}}},
     ("missing-parameter", "error", "scheduler.params")),
    ({"scheduler": {"type": "WarmupLR", "params": {"warmup_steps": 1}}},
     ("unknown-parameter", "error", "scheduler.params.warmup_steps")),
    ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}},
     ("warmup-steps", "error", "scheduler.params.warmup_num_steps")),
    ({"bf16": {"enabled": True}, "data_types": {"param_dtype": "fp16"}},
     ("param-dtype", "error", "data_types.param_dtype")),
    ({"checkpoint": {"use_node_local_storage": True, "writer": {"type": "FAST"}}},
     ("local-writer", "warning", "checkpoint.writer")),
    ({"datastates_ckpt": {"enabled": False}}, ("datastates", "error", "datastates_ckpt")),
    ({"checkpoint": {"use_node_local_storage": True, "load_universal": True}},
     ("local-universal", "error", "checkpoint.load_universal")),
]  # fmt: skip


def test_every_rule_says_what_it_is_there_for() -> None:
    for config, expected in CASES:
        assert expected in said(config), config


RIGHT: list[dict[str, Any]] = [
    {},
    zero(stage=2, reduce_bucket_size=5e8, allgather_bucket_size=2e8, overlap_comm=True),
    zero(stage=3, sub_group_size=1e12, stage3_gather_16bit_weights_on_model_save=True,
         offload_optimizer={"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": True},
         offload_param={"device": "nvme", "nvme_path": "/local_nvme", "buffer_size": 1e8}),
    zero(stage=1, zenflow={"select_strategy": "auto", "update_interval": 4}),
    {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8}}},
    {"optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}},
    {"optimizer": {"type": "adam", "params": {"torch_adam": True, "foreach": False}}},
    {"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1}}},
    {"scheduler": {"type": "CosineAnnealingLR", "params": {"T_max": 10}}},
    {"_comment": "mine", "$schema": "deepspeed.schema.json", "optimizer": {"type": "Adam", "_": 1}},
    {"bf16": {"enabled": True}, "fp16": {"enabled": False}, "steps_per_print": 2000},
    {"communication_data_type": "FP32", "log_level": "info", "memory_breakdown": False},
    {"bf16": {"enabled": True}, "data_types": {"param_dtype": "bf16", "grad_accum_dtype": "fp32"}},
    {"data_efficiency": {"enabled": False}, "pipeline": {"stages": "auto"}},
    {"flops_profiler": {"enabled": True, "output_file": None}, "tensorboard": {"enabled": False}},
]  # fmt: skip


@pytest.mark.parametrize("config", RIGHT)
@pytest.mark.parametrize("version", schema.versions())
def test_a_config_that_is_right_has_no_error(config: dict[str, Any], version: str) -> None:
    table = schema.load(version)
    errors = [r for r in remarks(config, table=table) if r.level == "error"]
    of_other_versions = ("unknown-key", "ignored-key")
    assert [r for r in errors if r.rule not in of_other_versions] == []
    if version == schema.versions()[-1]:
        assert errors == []


def test_the_same_key_can_be_right_in_one_version_and_wrong_in_another() -> None:
    config = {"amp": {"enabled": True, "opt_level": "O1"}}
    assert said(config, table=OLD) == []
    (removed,) = remarks(config)
    assert (removed.rule, "0.19.6" in removed.message) == ("removed-key", True)
    newer = zero(compute_grad_norm=True)
    (unknown,) = remarks(newer, table=OLD)
    assert (unknown.rule, "0.19.8" in unknown.message) == ("unknown-key", True)


def test_json_is_asked_for_only_where_something_else_than_deepspeed_reads_it() -> None:
    config = '{"train_batch_size": 8, "zero_optimization": {"stage": 2,}, // x\n}'
    assert {r.level for r in remarks(config)} == {"info"}
    errors = [r for r in remarks(config, reader="hf") if r.level == "error"]
    assert [r.message.partition(":")[0] for r in errors] == ["trailing comma, 2 times", "comment"]
    assert {r.rule for r in errors} == {"not-json"}


def test_a_key_that_is_there_twice_is_an_error() -> None:
    found = remarks('{"train_batch_size": 8,\n "train_batch_size": 8}')
    assert [(r.rule, r.line, r.column) for r in found] == [("duplicate-key", 2, 2)]


def test_a_list_is_no_config() -> None:
    assert said("[1]") == [("no-object", "error", "")]


def test_invalid_text_is_one_error() -> None:
    with pytest.raises(ConfigError) as raised:
        config_text.parse('{"a": }', "ds.json")
    (remark,) = unreadable(raised.value)
    assert (remark.rule, remark.level, remark.line, remark.column) == ("syntax", "error", 1, 7)


HF_AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto"}},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
}


def test_only_the_trainer_replaces_every_auto() -> None:
    assert [r for r in said(HF_AUTO, reader="hf") if r[1] == "error"] == []
    accelerate = [r[2] for r in said(HF_AUTO, reader="accelerate") if r[1] == "error"]
    assert accelerate == ["optimizer.params.betas", "optimizer.params.eps"]
    assert len([r for r in said(HF_AUTO) if r[1] == "error"]) == 9


def test_auto_that_is_deepspeeds_own_word_stops_accelerate() -> None:
    config = {**zero(stage=2), "pipeline": {"stages": "auto"}}
    assert said(config) == []
    assert ("auto-unresolved", "error", "pipeline.stages") in said(config, reader="accelerate")


HF_CASES: list[tuple[str, dict[str, Any], tuple[str, str, str]]] = [
    ("--per_device_train_batch_size 4", {"train_micro_batch_size_per_gpu": 8},
     ("hf-mismatch", "error", "train_micro_batch_size_per_gpu")),
    ("--learning_rate 1e-4", {"optimizer": {"type": "Adam", "params": {"lr": 1e-3}}},
     ("hf-mismatch", "error", "optimizer.params.lr")),
    ("", {"optimizer": {"type": "Adam", "params": {"lr": 1e-3}}},
     ("hf-mismatch", "warning", "optimizer.params.lr")),
    ("--warmup_steps 10", {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}},
     ("hf-mismatch", "error", "scheduler.params.warmup_num_steps")),
    ("--adam_beta1 0.8", {"optimizer": {"type": "Adam", "params": {"betas": [0.9, 0.999]}}},
     ("hf-mismatch", "error", "optimizer.params.betas")),
    ("--max_grad_norm=0.5", {"gradient_clipping": 1.0},
     ("hf-mismatch", "error", "gradient_clipping")),
    ("--bf16", {"fp16": {"enabled": True}}, ("hf-precision", "error", "fp16.enabled")),
    ("--fp16", {"fp16": {"enabled": False}}, ("hf-mismatch", "error", "fp16.enabled")),
    ("--lr_scheduler_type cosine", {"scheduler": {"type": "WarmupLR", "params": {}}},
     ("hf-scheduler", "error", "scheduler.type")),
    ("--save_on_each_node", {"checkpoint": {"use_node_local_storage": False}},
     ("hf-node-local", "error", "checkpoint.use_node_local_storage")),
    ("", {"checkpoint": {"use_node_local_storage": True}},
     ("hf-node-local", "warning", "checkpoint.use_node_local_storage")),
    ("--per_device_train_batch_size 4", {"train_batch_size": 8},
     ("hf-mismatch", "error", "train_batch_size")),
    ("", {"scheduler": {"type": "WarmupLR", "params": {}}},
     ("hf-scheduler", "info", "scheduler")),
    ("", zero(stage=2, offload_optimizer={"device": "cpu"}),
     ("hf-optimizer-offload", "warning", "zero_optimization.offload_optimizer")),
    ("", {}, ("no-zero", "error", "")),
    ("--do_eval", zero(stage=2), ("hf-inference", "error", "zero_optimization")),
    ("--gradient_accumulation_steps 4 --bf16",
     {"bf16": {"enabled": "auto"}, "gradient_accumulation_steps": "auto", **zero(stage=2)},
     ("bf16-accumulation", "info", "bf16.enabled")),
    ("", {"activation_checkpointing": {"partition_activations": True}},
     ("hf-activation-checkpointing", "warning", "activation_checkpointing")),
    ("--fp16 --bf16", {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}},
     ("both-precisions", "error", "bf16.enabled")),
]  # fmt: skip


@pytest.mark.parametrize(("words", "config", "expected"), HF_CASES)
def test_the_trainers_arguments_and_the_config_must_say_the_same(
    words: str, config: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    known = arguments.read(words.split())
    assert expected in said(config, reader="hf", arguments=known)


@pytest.mark.parametrize(
    ("words", "config"),
    [
        ("--do_eval --do_train", zero(stage=2)),
        ("--do_eval", zero(stage=3)),
        ("--do_train", zero(stage=1)),
        ("--bf16", {"activation_checkpointing": {"partition_activations": False}}),
        ("--bf16 --gradient_accumulation_steps 2",
         {"bf16": {"enabled": "auto"}, "gradient_accumulation_steps": "auto", **zero(stage=2),
          "data_types": {"grad_accum_dtype": "fp32"}}),
    ],
)  # fmt: skip
def test_what_the_trainer_takes_is_not_complained_of(words: str, config: dict[str, Any]) -> None:
    found = said(config, reader="hf", arguments=arguments.read(words.split()))
    new = {"hf-inference", "hf-activation-checkpointing", "bf16-accumulation"}
    assert new.isdisjoint(rule for rule, _, _ in found)


def test_one_buffer_for_activations_needs_to_know_how_many_layers_there_are() -> None:
    path = "activation_checkpointing.contiguous_memory_optimization"
    section = {"partition_activations": True, "contiguous_memory_optimization": True}
    short = said({"train_batch_size": 8, "activation_checkpointing": section})
    assert short == [("contiguous-activations", "warning", path)]
    whole = {**section, "number_checkpoints": 4}
    assert said({"train_batch_size": 8, "activation_checkpointing": whole}) == []


def test_a_model_that_was_trained_in_bf16_overflows_in_fp16() -> None:
    fp16 = {"train_batch_size": 8, "fp16": {"enabled": True}}
    found = said(fp16, model_dtype="bfloat16")
    assert found == [("bf16-model", "warning", "fp16.enabled")]
    assert said(fp16, model_dtype="float16") == said(fp16) == []


def test_arguments_that_say_the_same_are_right() -> None:
    words = "x --per-device-train-batch-size 4 --learning_rate=1e-3 --bf16 --warmup_steps 10"
    known = arguments.read([*words.split(), "--lr_scheduler_type", "constant_with_warmup"])
    config = {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.001}},
        **zero(stage=2),
    }
    found = remarks(config, reader="hf", arguments=known, parallelism=Parallelism(2))
    assert [r for r in found if r.level != "info"] == []


def node(**settings: Any) -> NodeHardware:
    return NodeHardware(**{"host": "node01", "slots": 4, **settings})


def nvme(**settings: Any) -> NodeHardware:
    return node(directories=(DirectoryFacts("/nvme", **settings),))


ON_NVME = zero(stage=3, offload_param={"device": "nvme", "nvme_path": "/nvme"})
HARDWARE: list[tuple[NodeHardware, dict[str, Any], str]] = [
    (node(gpu="Tesla V100-SXM2-32GB"), {"bf16": {"enabled": True}}, "no-bf16"),
    (node(gpu="Tesla-T4"), {"bf16": {"enabled": True}}, "no-bf16"),
    (node(gpu="NVIDIA GeForce RTX 3090"), zero(stage=3), "pcie-stage3"),
    (nvme(exists=False), ON_NVME, "nvme-directory"),
    (nvme(exists=True, filesystem="tmpfs"), ON_NVME, "nvme-directory"),
    (nvme(exists=True, shared=True), ON_NVME, "nvme-directory"),
    (nvme(exists=True, direct=False), ON_NVME, "nvme-directory"),
    (node(memory=64 * 2**30), zero(stage=2, offload_optimizer={"device": "cpu"}), "cpu-memory"),
    (node(), zero(stage=3, zero_hpz_partition_size=3), "hpz"),
    (node(), zero(stage=3, zero_hpz_partition_size=2), "hpz"),
    (node(gpus=8), zero(stage=3, zero_quantized_gradients=True), "quantised-groups"),
]


@pytest.mark.parametrize(("hardware", "config", "rule"), HARDWARE)
def test_what_the_nodes_have_is_held_against_the_config(
    hardware: NodeHardware, config: dict[str, Any], rule: str
) -> None:
    around = {"nodes": (hardware,), "parallelism": Parallelism(4), "parameters": 7e9}
    assert rule in [name for name, _, _ in said(config, **around)]


def test_what_the_arguments_switch_on_is_held_against_the_gpus() -> None:
    around: dict[str, Any] = {"reader": "hf", "nodes": (node(gpu="Tesla V100-SXM2-32GB"),)}
    config = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, **zero(stage=2)}
    for words, rules in (("--bf16", {"no-bf16"}), ("--tf32 1", {"no-tf32"}), ("--fp16", set())):
        found = said(config, **around, arguments=arguments.read(words.split()))
        assert {rule for rule, level, _ in found if level == "error"} == rules


def test_a_link_that_was_asked_for_goes_before_what_such_gpus_usually_have() -> None:
    config = zero(stage=3)
    for gpu, nvlink, slow in (("RTX 3090", True, False), ("A100-PCIE-40GB", False, True)):
        found = said(config, nodes=(node(gpu=gpu, nvlink=nvlink),))
        assert ("pcie-stage3" in [rule for rule, _, _ in found]) is slow


def test_fit_nodes_raise_no_remark() -> None:
    hardware = node(
        gpu="NVIDIA A100-SXM4-80GB", gpus=4, memory=2**40,
        directories=(DirectoryFacts("/nvme", True, "ext4", False, True),),
    )  # fmt: skip
    config = {
        **zero(stage=3, zero_hpz_partition_size=4, zero_quantized_gradients=True,
               stage3_gather_16bit_weights_on_model_save=True,
               offload_param={"device": "nvme", "nvme_path": "/nvme"},
               offload_optimizer={"device": "cpu"}),
        "bf16": {"enabled": True},
        "communication_data_type": "fp32",
    }  # fmt: skip
    around = {"nodes": (hardware,), "parallelism": Parallelism(4), "parameters": 7e9}
    assert said(config, **around) == []


def test_batch_sizes_are_held_against_the_world_as_it_is_divided() -> None:
    config = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2}
    assert said(config, parallelism=Parallelism(16)) == []
    assert said(config, parallelism=Parallelism(16, tensor=4)) == []
    (remark,) = remarks(config, parallelism=Parallelism(32))
    assert "Gradient accumulation steps: 0" in remark.message
    divided = {**config, "tensor_parallel": {"autotp_size": 4}}
    (remark,) = remarks(divided, parallelism=Parallelism(16, autotp=4))
    assert (remark.rule, remark.level) == ("batch-autotp", "warning")
    assert {"32", "8"} <= set(remark.message.split())
    config = {"train_micro_batch_size_per_gpu": 2, "train_batch_size": None}
    (remark,) = remarks(config, parallelism=Parallelism(16, sequence=3))
    assert remark.rule == "batch-fraction"


def test_without_a_world_size_only_what_fails_everywhere_is_an_error() -> None:
    config = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2,
              "gradient_accumulation_steps": 1}  # fmt: skip
    assert [r.level for r in remarks(config, parallelism=None)] == ["info"]
    impossible = {"train_batch_size": 33, "train_micro_batch_size_per_gpu": 2,
                  "gradient_accumulation_steps": 1}  # fmt: skip
    assert [r.level for r in remarks(impossible, parallelism=None)] == ["error"]


def test_a_pipeline_takes_no_more_than_stage_1() -> None:
    around = {"parallelism": Parallelism(8, pipeline=2)}
    assert said({"train_batch_size": 8, **zero(stage=1)}, **around) == []
    assert ("pipeline-stage", "error", "zero_optimization.stage") in said(zero(stage=2), **around)


def test_node_local_checkpoints_of_tensor_ranks_cannot_be_loaded() -> None:
    config = {"checkpoint": {"use_node_local_storage": True}}
    assert said(config) == []
    found = said(config, parallelism=Parallelism(4, tensor=2))
    assert found == [("local-model-parallel", "error", "checkpoint.use_node_local_storage")]
    whole = zero(stage=3, stage3_gather_16bit_weights_on_model_save=True)
    assert said({**config, **whole}, parallelism=Parallelism(4, tensor=2)) == []


def test_who_reads_the_config_is_guessed_from_auto_and_arguments() -> None:
    plain = config_text.parse('{"pipeline": {"stages": "auto"}}', "c")
    assert guess_reader(plain) == "native"
    assert guess_reader(plain, ["--learning_rate", "1"]) == "hf"
    assert guess_reader(config_text.parse('{"a": {"b": "auto"}}', "c")) == "hf"


def test_fixing_keeps_comments_and_order() -> None:
    config = (
        '{\n  // mine\n  "train_batch_size": 8,\n  "zero_optimization": {\n'
        '    "cpu_offload": true, /* old */\n    "stage": "2"\n  },\n'
        '  "bfloat16": {"enabled": "yes"},\n  "gradient_cliping": 1.0\n}\n'
    )
    assert fixed_text(config, remarks(config)) == (
        '{\n  // mine\n  "train_batch_size": 8,\n  "zero_optimization": {\n'
        '    "offload_optimizer": {"device": "cpu"}, /* old */\n    "stage": 2\n  },\n'
        '  "bf16": {"enabled": true},\n  "gradient_clipping": 1.0\n}\n'
    )


AIO = '"aio": {\n      "block_size": 262144,\n      "thread_count": 1\n    }'


@pytest.mark.parametrize(
    "section",
    [
        f'"stage": 3,\n    {AIO},\n    "overlap_comm": true',
        f'{AIO},\n    "stage": 3,\n    "overlap_comm": true',
        f'"stage": 3, "overlap_comm": true, {AIO}',
        AIO,
    ],
)
def test_a_section_at_the_wrong_place_is_moved_to_the_top(section: str) -> None:
    config = f'{{\n  "zero_optimization": {{\n    {section}\n  }},\n  "train_batch_size": 8\n}}\n'
    new = fixed_text(config, remarks(config))
    before, after = config_text.parse(config, "c").data, json.loads(new)
    aio = before["zero_optimization"].pop("aio")
    assert after == {**before, "aio": aio}
    assert list(after) == ["zero_optimization", "aio", "train_batch_size"]
    assert '  "aio": {\n' in new


@pytest.mark.parametrize(
    "section",
    [
        f'"stage": 3, // mine\n    {AIO}',
        f'{AIO}, /* mine */ "stage": 3',
        f'"stage": 3\n    {AIO}',
        f"{AIO},",
    ],
)
def test_what_may_belong_to_something_else_is_not_moved(section: str) -> None:
    config = f'{{"zero_optimization": {{\n    {section}\n  }}, "train_batch_size": 8}}'
    assert (
        "aio"
        in config_text.parse(fixed_text(config, remarks(config)), "c").data["zero_optimization"]
    )
    both = f'{{"zero_optimization": {{{AIO}}}, "aio": {{}}, "train_batch_size": 8}}'
    assert fixed_text(both, remarks(both)) == both
