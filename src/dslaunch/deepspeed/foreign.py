"""What people write that is not DeepSpeed's: names of other programs, and what to do about them.

Names alone mislead (`max_grad_norm` looks like a parameter of an optimizer), so this table comes
before any comparison of letters. Sources of the names: Megatron-LM arguments.py, gpt-neox
configs/README.md, accelerate 1.15 DeepSpeedPlugin and `accelerate config`, transformers 5.23
TrainingArguments, Lightning 2.5 Trainer, OpenRLHF cli, apex amp, torch.amp.GradScaler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dslaunch.deepspeed.schema import Table
from dslaunch.deepspeed.text import Path, path_text

ZERO, PARAMS, SCHEDULE = "zero_optimization", "optimizer.params", "scheduler.params"
MICRO = "train_micro_batch_size_per_gpu"


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about a key that is not DeepSpeed's."""

    fix: str
    target: str | None = None
    """The key of the config that is meant; None: it has none, another program reads this."""


MEANT: dict[str, str] = {
    f"{ZERO}.stage": "zero_stage stage zero_optimization_stage deepspeed_zero_stage zero_level",
    ZERO: "zero zero_opt zero_config zero_optimizer",
    "gradient_clipping": (
        "max_grad_norm clip_grad clip_grad_norm clip_gradients clip_norm grad_clip grad_clipping "
        "grad_norm_clip gradient_clip gradient_clip_val gradient_clip_norm max_norm "
        "max_gradient_norm"
    ),
    MICRO: (
        "micro_batch_size micro_batch_per_gpu micro_batch_size_per_gpu train_micro_batch_size "
        "train_micro_batch_per_gpu micro_train_batch_size per_device_train_batch_size "
        "per_gpu_train_batch_size per_device_batch_size batch_size_per_gpu batch_per_gpu "
        "train_micro_batch_size_per_device train_batch_size_per_gpu train_batch_size_per_device "
        "micro_bsz mbs"
    ),
    "train_batch_size": (
        "global_batch_size total_batch_size effective_batch_size train_global_batch_size gbs"
    ),
    "gradient_accumulation_steps": (
        "grad_accum grad_accum_steps gradient_accumulation gradient_accumulation_step gas "
        "accumulate_grad_batches accumulation_steps grad_acc_steps gradient_acc_steps"
    ),
    f"{PARAMS}.lr": "lr learning_rate",
    f"{PARAMS}.weight_decay": "weight_decay wd",
    f"{PARAMS}.betas": "betas adam_betas adam_beta1 adam_beta2 beta1 beta2",
    f"{PARAMS}.eps": "eps adam_epsilon adam_eps epsilon",
    "optimizer.type": "optim optimizer_type optimizer_name",
    "scheduler.type": "lr_scheduler lr_scheduler_type lr_decay_style scheduler_type",
    f"{SCHEDULE}.warmup_num_steps": (
        "warmup_steps num_warmup_steps warmup_num_steps lr_warmup_steps lr_warmup_iters"
    ),
    f"{SCHEDULE}.total_num_steps": "total_num_steps num_training_steps lr_decay_iters",
    f"{SCHEDULE}.warmup_min_lr": "min_lr warmup_min_lr",
    f"{SCHEDULE}.warmup_max_lr": "max_lr warmup_max_lr",
    f"{ZERO}.offload_optimizer": "offload_optimizer cpu_offload offload_optim optimizer_offload",
    f"{ZERO}.offload_param": "offload_param offload_params cpu_offload_params param_offload",
    f"{ZERO}.offload_optimizer.device": "offload_optimizer_device cpu_offload_optimizer",
    f"{ZERO}.offload_param.device": "offload_param_device",
    f"{ZERO}.offload_optimizer.nvme_path": "offload_optimizer_nvme_path",
    f"{ZERO}.offload_param.nvme_path": "offload_param_nvme_path",
    f"{ZERO}.stage3_gather_16bit_weights_on_model_save": "zero3_save_16bit_model save_16bit_model",
    f"{ZERO}.overlap_comm": "overlap_comm overlap_communication",
    f"{ZERO}.contiguous_gradients": "contiguous_gradients",
    f"{ZERO}.reduce_bucket_size": "reduce_bucket_size",
    f"{ZERO}.allgather_bucket_size": "allgather_bucket_size",
    f"{ZERO}.reduce_scatter": "reduce_scatter",
    "fp16.loss_scale": "loss_scale",
    "fp16.initial_scale_power": "initial_scale_power initial_loss_scale init_loss_scale",
    "fp16.loss_scale_window": "loss_scale_window",
    "fp16.hysteresis": "hysteresis loss_scale_hysteresis",
    "fp16.min_loss_scale": "min_loss_scale",
    "fp16.enabled": "half half_precision use_fp16 fp16_enabled float16",
    "bf16.enabled": "use_bf16 bf16_enabled",
    "fp16.enabled or bf16.enabled": "mixed_precision precision amp_dtype",
    "activation_checkpointing.partition_activations": "partition_activations",
    "activation_checkpointing.cpu_checkpointing": "cpu_checkpointing checkpoint_in_cpu",
    "steps_per_print": (
        "logging_steps log_interval log_steps log_every_n_steps print_steps steps_per_log "
        "print_interval print_freq"
    ),
    "tensorboard": "tensorboard_dir tensorboard_output_path",
    "communication_data_type": "communication_dtype comm_dtype allreduce_dtype",
    "checkpoint.use_node_local_storage": "use_node_local_storage save_on_each_node",
    "aio": "async_io libaio",
}
"""For each key of DeepSpeed's, what is written at the top level instead of it."""

TRAINER = "an argument of the training script (Hugging Face: TrainingArguments)"
SETTING = "the training script's own setting: give it to the script"
LAUNCHER = "the launcher's: give it to dslaunch, torchrun or deepspeed"
ACCELERATE = "a key of accelerate's own config file (`accelerate config`)"
MODEL = "a setting of the model: give it to the script"
ELSEWHERE: dict[str, str] = {
    "the training script's: DeepSpeed has no epochs, and trains as long as the script does": (
        "num_epochs num_train_epochs epochs max_epochs max_steps train_iters total_steps n_epochs"
    ),
    "the training script's: seed torch there (Hugging Face: --seed)": "seed random_seed data_seed",
    TRAINER: (
        "output_dir overwrite_output_dir save_steps save_strategy save_total_limit eval_steps "
        "eval_strategy evaluation_strategy per_device_eval_batch_size report_to run_name "
        "warmup_ratio do_train do_eval logging_dir logging_strategy remove_unused_columns "
        "label_smoothing_factor group_by_length load_best_model_at_end ddp_find_unused_parameters "
        "torch_compile push_to_hub resume_from_checkpoint fsdp fsdp_config neftune_noise_alpha"
    ),
    SETTING: (
        "dataset dataset_name data_path data_dir train_file validation_file num_workers "
        "dataloader_num_workers dataloader_pin_memory eval_interval save_interval eval_iters "
        "max_seq_length max_length seq_length cutoff_len lora_r lora_rank lora_alpha lora_dropout "
        "target_modules load_in_8bit load_in_4bit quantization use_flash_attention tokenizer"
    ),
    MODEL: (
        "model model_name model_name_or_path model_type num_layers hidden_size num_attention_heads "
        "max_position_embeddings vocab_size num_experts"
    ),
    "the script's: model.gradient_checkpointing_enable(), or --gradient_checkpointing of Hugging "
    "Face; activation_checkpointing only configures deepspeed.checkpointing": (
        "gradient_checkpointing checkpoint_activations recompute_granularity use_reentrant "
        "activation_checkpoint gradient_checkpointing_kwargs recompute"
    ),
    "an argument of Megatron or gpt-neox; DeepSpeed's own, automatic tensor parallelism is "
    "tensor_parallel.autotp_size": (
        "tensor_model_parallel_size model_parallel_size tensor_parallel_size tp tp_size mp_size "
        "model_parallel"
    ),
    "the script's: PipelineModule(num_stages=...) (Megatron and gpt-neox: an argument)": (
        "pipeline_model_parallel_size pipe_parallel_size pipeline_parallel_size pp pp_size "
        "num_stages pipeline_stages"
    ),
    LAUNCHER: (
        "num_gpus num_nodes nnodes nproc_per_node num_processes world_size local_rank rank "
        "master_addr master_port hostfile include exclude launcher gpus devices node_rank"
    ),
    ACCELERATE: (
        "compute_environment distributed_type num_machines machine_rank main_process_ip "
        "main_process_port main_training_function downcast_bf16 rdzv_backend same_network use_cpu "
        "deepspeed_config deepspeed_config_file deepspeed_multinode_launcher deepspeed_hostfile "
        "zero3_init_flag deepspeed_moe_layer_cls_names"
    ),
    "Lightning's: give it to the Trainer": (
        "accelerator strategy val_check_interval check_val_every_n_epoch limit_train_batches "
        "enable_checkpointing"
    ),
    "wandb's own settings are in the section wandb: enabled, group, team, project": (
        "wandb_project wandb_entity wandb_team wandb_group use_wandb"
    ),
}
"""For each advice, the names at the top level that it is about."""

NO_SCALE = "take it out: bf16 has the range of fp32 and needs no loss scale"
NO_LEVEL = "take it out: opt_level is apex's (amp), fp16 of DeepSpeed has no levels"
IN_SECTIONS: dict[str, str] = {
    **{
        f"{mode}.{name}": NO_SCALE
        for mode in ("bf16", "bfloat16")
        for name in (
            "loss_scale",
            "initial_scale_power",
            "loss_scale_window",
            "hysteresis",
            "min_loss_scale",
            "loss_scale_min",
            "consecutive_hysteresis",
            "scale_window",
        )
    },
    "bf16.auto_cast": "take it out; torch's autocast is the section torch_autocast",
    "bf16.opt_level": "take it out: opt_level is apex's (amp), bf16 of DeepSpeed has no levels",
    "fp16.opt_level": NO_LEVEL,
    "fp16.fp16_opt_level": NO_LEVEL,
    "fp16.fp16_scale_tolerance": "take it out: fairseq's, DeepSpeed has none",
    "fp16.fp16_scale_window": "the key is loss_scale_window",
    "fp16.scale_window": "the key is loss_scale_window",
    "fp16.growth_interval": "the key is loss_scale_window",
    "fp16.init_scale": "the key is initial_scale_power, an exponent: 16 means 65536",
    "fp16.initial_scale": "the key is initial_scale_power, an exponent: 16 means 65536",
    "fp16.initial_loss_scale": "the key is initial_scale_power, an exponent: 16 means 65536",
    "fp16.loss_scale_power": "the key is initial_scale_power",
    "fp16.fp16": "the key is enabled",
    "fp16.enable": "the key is enabled",
    "bf16.bf16": "the key is enabled",
    "bf16.enable": "the key is enabled",
    "fp16.type": 'take it out: gpt-neox\'s; for bfloat16 write "bf16": {"enabled": true}',
    "fp16.fp16_enabled": "the key is enabled",
    "fp16.master_weights": "the key is fp16_master_weights_and_grads",
    "pipeline.micro_batch_size": f"the key is {MICRO}, at the top level",
    "pipeline.micro_batches": "the key is gradient_accumulation_steps, at the top level",
    "pipeline.num_micro_batches": "the key is gradient_accumulation_steps, at the top level",
    "pipeline.num_stages": "the script's: PipelineModule(num_stages=...)",
    f"{ZERO}.zero_stage": "the key is stage",
    f"{ZERO}.level": "the key is stage",
    f"{ZERO}.enabled": "take it out: the stage says it, 0 is off",
    f"{ZERO}.offload_optimizer_device": 'write "offload_optimizer": {"device": ...}',
    f"{ZERO}.offload_param_device": 'write "offload_param": {"device": ...}',
    f"{ZERO}.offload": 'write "offload_optimizer": {"device": "cpu"}',
    f"{ZERO}.offload_params": "the key is offload_param",
    f"{ZERO}.offload_parameters": "the key is offload_param",
    f"{ZERO}.offload_optim": "the key is offload_optimizer",
    f"{ZERO}.optimizer_offload": "the key is offload_optimizer",
    f"{ZERO}.param_offload": "the key is offload_param",
    f"{ZERO}.cpu_offload_optimizer": 'write "offload_optimizer": {"device": "cpu"}',
    f"{ZERO}.cpu_offload_optimizers": 'write "offload_optimizer": {"device": "cpu"}',
    f"{ZERO}.nvme_path": "it belongs in offload_optimizer or offload_param",
    f"{ZERO}.pin_memory": "it belongs in offload_optimizer or offload_param",
    f"{ZERO}.overlap_communication": "the key is overlap_comm",
    f"{ZERO}.bucket_size": "the key is reduce_bucket_size",
    f"{ZERO}.gradient_clipping": "it belongs at the top level",
    f"{ZERO}.gradient_accumulation_steps": "it belongs at the top level",
    f"{ZERO}.partition_activations": "it belongs in activation_checkpointing",
    f"{ZERO}.cpu_checkpointing": "it belongs in activation_checkpointing",
    f"{ZERO}.contiguous_memory_optimization": "it belongs in activation_checkpointing",
    f"{ZERO}.zero3_save_16bit_model": "the key is stage3_gather_16bit_weights_on_model_save",
    f"{ZERO}.stage3_save_16bit_model": "the key is stage3_gather_16bit_weights_on_model_save",
    f"{ZERO}.save_16bit_model": "the key is stage3_gather_16bit_weights_on_model_save",
    f"{ZERO}.zero3_init_flag": f"take it out: {ACCELERATE}",
    f"{ZERO}.hpz_partition_size": "the key is zero_hpz_partition_size",
    f"{ZERO}.quantized_weights": "the key is zero_quantized_weights",
    f"{ZERO}.quantized_gradients": "the key is zero_quantized_gradients",
    f"{ZERO}.offload_optimizer.enabled": 'take it out: the device says it, "none" is off',
    f"{ZERO}.offload_param.enabled": 'take it out: the device says it, "none" is off',
    f"{ZERO}.offload_optimizer.offload_device": "the key is device",
    f"{ZERO}.offload_param.offload_device": "the key is device",
    f"{ZERO}.offload_optimizer.path": "the key is nvme_path",
    f"{ZERO}.offload_param.path": "the key is nvme_path",
    "optimizer.name": "the key is type",
    "optimizer.lr": "it belongs in optimizer.params",
    "optimizer.betas": "it belongs in optimizer.params",
    "optimizer.eps": "it belongs in optimizer.params",
    "optimizer.weight_decay": "it belongs in optimizer.params",
    "optimizer.param": "the key is params",
    "optimizer.parameters": "the key is params",
    "optimizer.config": "the key is params",
    "scheduler.name": "the key is type",
    "scheduler.param": "the key is params",
    "scheduler.parameters": "the key is params",
    "activation_checkpointing.enabled": (
        "take it out: nothing switches the section on; the model calls deepspeed.checkpointing"
    ),
    "activation_checkpointing.enable": (
        "take it out: nothing switches the section on; the model calls deepspeed.checkpointing"
    ),
    "tensor_parallel.tp_size": "the key is autotp_size",
    "tensor_parallel.size": "the key is autotp_size",
    "activation_checkpointing.checkpoint_in_cpu": "the key is cpu_checkpointing",
    "activation_checkpointing.num_checkpoints": "the key is number_checkpoints",
    "wandb.project_name": "the key is project",
    "wandb.entity": "the key is team",
    "wandb.name": "take it out: DeepSpeed's section has enabled, group, team and project",
    "tensorboard.log_dir": "the key is output_path",
    "tensorboard.path": "the key is output_path",
    "checkpoint.node_local_storage": "the key is use_node_local_storage",
    "checkpoint.load_universal_checkpoint": "the key is load_universal",
}
"""What is written within a section, and what to do about it."""
PARAMETERS: dict[str, str] = {
    "learning_rate": "lr", "adam_beta1": "betas", "adam_beta2": "betas", "beta1": "betas",
    "beta2": "betas", "beta": "betas", "adam_betas": "betas", "epsilon": "eps",
    "adam_epsilon": "eps", "adam_eps": "eps", "wd": "weight_decay", "decay": "weight_decay",
    "l2": "weight_decay", "warmup_steps": "warmup_num_steps", "num_warmup_steps":
    "warmup_num_steps", "warmup": "warmup_num_steps", "warmup_iters": "warmup_num_steps",
    "warmup_step": "warmup_num_steps", "num_training_steps": "total_num_steps",
    "total_steps": "total_num_steps", "max_steps": "total_num_steps", "num_steps":
    "total_num_steps", "total_iters": "total_num_steps", "train_steps": "total_num_steps",
    "min_lr": "warmup_min_lr", "max_lr": "warmup_max_lr", "lr": "warmup_max_lr",
    "warmup_lr": "warmup_max_lr", "base_lr": "warmup_max_lr", "min_lr_ratio": "cos_min_ratio",
    "warmup_ratio": "warmup_num_steps",
}  # fmt: skip
"""Parameters of optimizers and schedulers, as other programs call them."""
RATIO = "in steps: the ratio times all steps"
PARAMETER_NOTES = {"warmup_ratio": RATIO, "warmup": RATIO}
"""What to know where a parameter of another program has another unit."""
GPT_NEOX = frozenset((
    "pipe_parallel_size", "model_parallel_size", "num_layers", "hidden_size", "num_attention_heads",
    "seq_length", "max_position_embeddings", "pos_emb", "no_weight_tying", "train_iters",
    "lr_decay_iters", "lr_decay_style", "data_impl", "checkpoint_num_layers", "eval_iters",
    "keep_last_n_checkpoints", "norm", "hidden_dropout", "attention_dropout",
))  # fmt: skip
"""Keys by which a config of gpt-neox is known."""


def advice(path: Path, table: Table) -> Advice | None:
    """What to do about an unknown key, where its name is known from elsewhere."""
    name = plain(path[-1])
    if len(path) == 1:
        found = _AT_TOP.get(name)
        return found if found and _exists(found, table) else None
    fix = IN_SECTIONS.get(f"{path_text(path[:-1])}.{name}")
    if fix is None:
        return None
    target = fix.removeprefix("the key is ") if fix.startswith("the key is ") else ""
    return Advice(fix, target if target.replace("_", "").isalnum() else None)


def at_top(name: str) -> tuple[str, ...]:
    """The foreign names of keys of DeepSpeed's that a misspelt name at the top may be."""
    return _BY_LETTER.get(name[:1], ())


def plain(name: object) -> str:
    """A name without what differs between programs: dashes, capitals."""
    return str(name).lower().replace("-", "_").strip()


def _exists(found: Advice, table: Table) -> bool:
    return found.target is None or any(
        part in table.keys or table.names(part) for part in found.target.split(" or ")
    )


def _entries() -> Iterator[tuple[str, Advice]]:
    for target, names in MEANT.items():
        for name in names.split():
            yield name, Advice(f"the key is {target}", target)
    for fix, names in ELSEWHERE.items():
        for name in names.split():
            yield name, Advice(fix)
    yield "batch_size", Advice(f"the key is train_batch_size (all GPUs) or {MICRO} (one)")


_AT_TOP = dict(_entries())
_BY_LETTER: dict[str, tuple[str, ...]] = {
    letter: tuple(name for name, found in _AT_TOP.items() if found.target and name[0] == letter)
    for letter in {name[0] for name in _AT_TOP}
}
