"""Compare the config with the Hugging Face arguments of the script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dslaunch.deepspeed.arguments import Arguments
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.deepspeed.rules.auto import is_misspelt
from dslaunch.deepspeed.rules.types import BATCH, shown
from dslaunch.lint import Level, Remark
from dslaunch.lint.rules import also_reports, rule

TRAINER = "transformers 5.23, integrations/deepspeed.py"
MATCHED = (
    ("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ("gradient_clipping", "max_grad_norm"),
    ("optimizer.params.lr", "learning_rate"),
    ("optimizer.params.eps", "adam_epsilon"),
    ("optimizer.params.weight_decay", "weight_decay"),
    ("scheduler.params.warmup_max_lr", "learning_rate"),
)
"""Keys that must equal an argument."""
OTHERS_MATCHED = (
    "train_batch_size",
    "optimizer.params.betas",
    "fp16.enabled",
    "bf16.enabled",
    "scheduler.params.total_num_steps",
    "scheduler.params.warmup_num_steps",
)
"""Keys that are compared with several arguments together."""
SCHEDULERS = {"WarmupLR": "constant_with_warmup", "WarmupDecayLR": "linear"}
"""DeepSpeed schedulers, and the same schedulers of the Trainer."""


@rule("hf-mismatch", "error", "a value that differs from the Trainer argument", source=TRAINER)
@rule(
    "hf-precision",
    "error",
    "fp16 and bf16 in config and Trainer arguments contradict each other",
    source=TRAINER,
)
def matching(config: LintedConfig) -> Iterator[Remark]:
    """Each key must equal its argument, or be `auto`."""
    known = config.arguments
    if config.reader != "hf" or known is None:
        return
    for path, name in MATCHED:
        yield from _compared(config, path, name, known[name], said=known.says(name))
    yield from _steps(config, known)
    betas = [known["adam_beta1"], known["adam_beta2"]]
    said = known.says("adam_beta1") or known.says("adam_beta2")
    path = "optimizer.params.betas"
    yield from _compared(config, path, "adam_beta1 and 2", betas, said=said)
    yield from _train_batch(config, known)
    yield from _precision(config, known)


@rule(
    "hf-text",
    "error",
    "a number in quotes that the Trainer or accelerate does not accept",
    source=TRAINER,
)
def in_quotes(config: LintedConfig) -> Iterator[Remark]:
    """A string never equals an argument, so the Trainer stops."""
    if config.reader != "hf":
        return
    for path in (*(path for path, _ in MATCHED), *OTHERS_MATCHED):
        value = config.raw(path)
        if not isinstance(value, str) or value == "auto" or is_misspelt(value):
            continue
        if path in BATCH:
            continue  # checked by the rules of batch sizes
        message = f"{shown(value)} is a string, which never equals an argument: the Trainer stops"
        fix = 'write "auto" to use the argument'
        edits = config.rewrite(tuple(path.split(".")), "auto")
        yield config.error("hf-text", path, message, fix=fix, edits=edits)


@also_reports
def stage_in_quotes(config: LintedConfig) -> Iterator[Remark]:
    """DeepSpeed accepts a stage in quotes; accelerate and transformers do not."""
    path = "zero_optimization.stage"
    value = config.raw(path)
    if config.reader == "native" or not isinstance(value, str) or not value.strip().isdecimal():
        return
    stage = int(value) if len(value) < 3 else 0
    yield config.error(
        "hf-text",
        path,
        f"{shown(value)} is a string: is_zero3() of accelerate and transformers returns False",
        fix=f"write {stage}, without quotes",
        source="accelerate 1.15, utils/deepspeed.py, `is_zero3`",
        edits=config.rewrite(tuple(path.split(".")), stage),
    )


def _steps(config: LintedConfig, known: Arguments) -> Iterator[Remark]:
    """Compare numbers of steps, if arguments set them; otherwise they depend on the data."""
    for name, argument in (("warmup_num_steps", "warmup_steps"), ("total_num_steps", "max_steps")):
        path, steps = f"scheduler.params.{name}", known.given.get(argument)
        if isinstance(steps, int) and not isinstance(steps, bool) and steps > 0:
            yield from _compared(config, path, argument, steps, said=True)


def _compared(
    config: LintedConfig, path: str, name: str, argument: Any, *, said: bool
) -> Iterator[Remark]:
    value = config.raw(path)
    if value is None or value == "auto" or value == argument or isinstance(value, str):
        return
    origin = "" if said else " (default)"
    message = f"{shown(value)}, but --{name} is {shown(argument)}{origin}: the Trainer stops"
    yield _mismatch(config, path, message, "error" if said else "warning")


def _mismatch(config: LintedConfig, path: str, message: str, level: Level) -> Remark:
    edits = config.rewrite(tuple(path.split(".")), "auto") if level == "error" else ()
    fix = 'write "auto" to use the argument'
    return config.remark("hf-mismatch", level, path, message, fix=fix, edits=edits)


def _train_batch(config: LintedConfig, known: Arguments) -> Iterator[Remark]:
    value = config.raw("train_batch_size")
    if config.parallelism is None or value is None or isinstance(value, str):
        return
    world = config.parallelism.world
    names = ("per_device_train_batch_size", "gradient_accumulation_steps")
    micro, steps = (known[name] for name in names)
    if isinstance(micro, int) and isinstance(steps, int) and value != world * micro * steps:
        message = (
            f"{shown(value)}, but {world} ranks x --{names[0]} {micro} x --{names[1]} {steps} = "
            f"{world * micro * steps}: the Trainer stops"
        )
        said: Level = "error" if any(map(known.says, names)) else "warning"
        yield _mismatch(config, "train_batch_size", message, said)


def _precision(config: LintedConfig, known: Arguments) -> Iterator[Remark]:
    for mode in ("fp16", "bf16"):
        names = (mode, f"{mode}_full_eval")
        argument = any(known[name] is True for name in names)
        path, value = f"{mode}.enabled", config.raw(f"{mode}.enabled")
        if value is None or isinstance(value, str) or value == argument:
            continue
        said = any(map(known.says, names))
        state = "set" if argument else "not set"
        message = f"{shown(value)}, but --{mode} is {state}: the Trainer stops"
        yield _mismatch(config, path, message, "error" if said or value is True else "warning")
        if value is True and known[{"fp16": "bf16", "bf16": "fp16"}[mode]] is True:
            other = {"fp16": "bf16", "bf16": "fp16"}[mode]
            yield config.error(
                "hf-precision",
                path,
                f"true, but --{other} is set: the Trainer stops",
                fix=f"use one of {mode} and {other}",
            )


@rule(
    "hf-optimizer-offload",
    "warning",
    "the Trainer's optimizer with an offloaded optimizer state",
    source="Hugging Face's DeepSpeed guide: optimizer; DeepSpeed 0.19.8, runtime/engine.py",
)
@rule(
    "hf-scheduler",
    "error",
    "optimizer and scheduler come from DeepSpeed and the Trainer",
    source=TRAINER,
)
def schedulers(config: LintedConfig) -> Iterator[Remark]:
    """Report combinations of optimizers and schedulers of DeepSpeed and the Trainer."""
    if config.reader != "hf":
        return
    name, known = config.raw("scheduler.type"), config.arguments
    if name is not None and known is not None and known.says("lr_scheduler_type"):
        same = SCHEDULERS.get(str(name))
        argument = known["lr_scheduler_type"]
        if same != argument:
            message = f"{name} is used; --lr_scheduler_type {argument} is ignored"
            yield config.remark(
                "hf-scheduler",
                "error" if same else "warning",
                "scheduler.type",
                message,
                fix="remove one of the two",
            )
    own, offloads = config.raw("optimizer") is not None, _offloads(config)
    if not own and offloads and config.get("zero_force_ds_cpu_optimizer") is not False:
        yield config.warning(
            "hf-optimizer-offload",
            "zero_optimization.offload_optimizer",
            "offloading with the Trainer's optimizer: accelerate replaces AdamW by "
            "DeepSpeedCPUAdam, and DeepSpeed stops at any other optimizer",
            fix="add an optimizer section, or set zero_force_ds_cpu_optimizer to false",
        )
    if own and config.raw("scheduler") is None:
        yield config.info(
            "hf-scheduler",
            "optimizer",
            "optimizer of DeepSpeed with scheduler of the Trainer: not supported by transformers "
            "before 4.33",
            fix=None,
            source="Hugging Face's DeepSpeed guide: optimizer and scheduler",
        )
    elif not own and name is not None:
        yield config.info(
            "hf-scheduler",
            "scheduler",
            "scheduler of DeepSpeed with optimizer of the Trainer: the optimizer must have both a "
            "CPU and a GPU implementation, which LAMB does not",
            fix=None,
        )


def _offloads(config: LintedConfig) -> bool:
    return config.get("zero_optimization.offload_optimizer.device") in ("cpu", "nvme")


@rule(
    "no-zero",
    "error",
    "`zero_optimization` is missing",
    source="accelerate 1.15, utils/dataclasses.py",
)
def section(config: LintedConfig) -> Iterator[Remark]:
    """accelerate, and with it the Trainer, requires the ZeRO section."""
    if config.reader != "native" and not config.has("zero_optimization"):
        yield config.error(
            "no-zero",
            "",
            "zero_optimization is not set: accelerate stops with `Please specify the ZeRO "
            "optimization config in the DeepSpeed config`",
            fix='add "zero_optimization": {"stage": 2}; stage 0 turns ZeRO off',
        )


@rule(
    "hf-node-local",
    "error",
    "`use_node_local_storage` and `--save_on_each_node` differ",
    source=TRAINER,
)
def saving(config: LintedConfig) -> Iterator[Remark]:
    """--save_on_each_node overrides the config."""
    known, path = config.arguments, "checkpoint.use_node_local_storage"
    if known is None or config.reader != "hf":
        return
    each = known["save_on_each_node"] is True
    if each and config.raw(path) is False:
        yield config.error(
            "hf-node-local",
            path,
            "false, but --save_on_each_node sets it to true",
            fix="set it to true, or remove --save_on_each_node",
        )
    elif config.raw(path) is True and not each:
        yield config.warning(
            "hf-node-local",
            path,
            "--save_on_each_node is not set: nodes other than the first get no trainer_state.json "
            "and never delete old checkpoints",
            fix="add --save_on_each_node",
            source="transformers 5.23, trainer.py",
        )


@rule("hf-inference", "error", "evaluation only, with a ZeRO stage below 3", source=TRAINER)
def inference(config: LintedConfig) -> Iterator[Remark]:
    """Evaluation without training needs stage 3, the only one that partitions the weights."""
    known = config.arguments
    if known is None or config.reader != "hf" or config.stage == 3:
        return
    asked = [name for name in ("do_eval", "do_predict") if known[name] is True]
    if asked and known["do_train"] is not True and config.has("zero_optimization"):
        yield config.error(
            "hf-inference",
            "zero_optimization",
            f"--{asked[0]} without --do_train at ZeRO stage {config.stage}: the Trainer stops with "
            "`ZeRO inference only makes sense with ZeRO Stage 3`",
            fix="set zero_optimization.stage to 3, or evaluate without DeepSpeed",
        )
