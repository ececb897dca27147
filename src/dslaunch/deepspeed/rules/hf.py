"""The config against the Hugging Face arguments of the script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dslaunch.deepspeed.arguments import Arguments
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.deepspeed.rules.auto import is_misspelt
from dslaunch.deepspeed.rules.types import BATCH, shown
from dslaunch.lint import Level, Remark

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
"""Which key has to say the same as which argument."""
OTHERS_MATCHED = (
    "train_batch_size",
    "optimizer.params.betas",
    "fp16.enabled",
    "bf16.enabled",
    "scheduler.params.total_num_steps",
    "scheduler.params.warmup_num_steps",
)
"""Keys that are compared with what follows from several arguments."""
SCHEDULERS = {"WarmupLR": "constant_with_warmup", "WarmupDecayLR": "linear"}
"""What the Trainer's schedulers are called in DeepSpeed."""


def matching(config: LintedConfig) -> Iterator[Remark]:
    """Key by key: what is written must be what the argument says, or `auto`."""
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


def in_quotes(config: LintedConfig) -> Iterator[Remark]:
    """A text never equals the argument, so the Trainer stops, whatever the argument says."""
    if config.reader != "hf":
        return
    for path in (*(path for path, _ in MATCHED), *OTHERS_MATCHED):
        value = config.raw(path)
        if not isinstance(value, str) or value == "auto" or is_misspelt(value):
            continue
        if path in BATCH:
            continue  # the rules of batch sizes say more
        message = f"{shown(value)} is a text, which never equals an argument: the Trainer stops"
        fix = 'write "auto", and the argument decides'
        edits = config.rewrite(tuple(path.split(".")), "auto")
        yield config.error("hf-text", path, message, fix=fix, source=TRAINER, edits=edits)


def stage_in_quotes(config: LintedConfig) -> Iterator[Remark]:
    """A stage in quotes is a stage for DeepSpeed, and none for accelerate and transformers."""
    path = "zero_optimization.stage"
    value = config.raw(path)
    if config.reader == "native" or not isinstance(value, str) or not value.strip().isdigit():
        return
    stage = int(value) if len(value) < 3 else 0
    yield config.error(
        "hf-text",
        path,
        f"{shown(value)} is a text: is_zero3() says False, whatever DeepSpeed makes of it",
        fix=f"write {stage}, without quotes",
        source="accelerate 1.15, utils/deepspeed.py, `is_zero3`",
        edits=config.rewrite(tuple(path.split(".")), stage),
    )


def _steps(config: LintedConfig, known: Arguments) -> Iterator[Remark]:
    """Numbers of steps, where an argument says them; else they follow from the data."""
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
    origin = "" if said else ", its default"
    message = f"{shown(value)}, but --{name} is {shown(argument)}{origin}: the Trainer stops"
    yield _mismatch(config, path, message, "error" if said else "warning")


def _mismatch(config: LintedConfig, path: str, message: str, level: Level) -> Remark:
    edits = config.rewrite(tuple(path.split(".")), "auto") if level == "error" else ()
    fix = 'write "auto", and the argument decides'
    return config.remark("hf-mismatch", level, path, message, fix=fix, source=TRAINER, edits=edits)


def _train_batch(config: LintedConfig, known: Arguments) -> Iterator[Remark]:
    value = config.raw("train_batch_size")
    if config.parallelism is None or value is None or isinstance(value, str):
        return
    world = config.parallelism.world
    names = ("per_device_train_batch_size", "gradient_accumulation_steps")
    micro, steps = (known[name] for name in names)
    if isinstance(micro, int) and isinstance(steps, int) and value != world * micro * steps:
        message = (
            f"{shown(value)}, but {world} ranks x --{names[0]} {micro} x --{names[1]} {steps} is "
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
        state = "given" if argument else "not given"
        message = f"{shown(value)}, but --{mode} is {state}: the Trainer stops"
        yield _mismatch(config, path, message, "error" if said or value is True else "warning")
        if value is True and known[{"fp16": "bf16", "bf16": "fp16"}[mode]] is True:
            other = {"fp16": "bf16", "bf16": "fp16"}[mode]
            yield config.error(
                "hf-precision",
                path,
                f"--{other} is given, and {path} is true",
                fix=f"keep one of {mode} and {other}",
                source=TRAINER,
            )


def schedulers(config: LintedConfig) -> Iterator[Remark]:
    """Who makes optimizer and scheduler, and whether that goes together."""
    if config.reader != "hf":
        return
    name, known = config.raw("scheduler.type"), config.arguments
    if name is not None and known is not None and known.says("lr_scheduler_type"):
        same = SCHEDULERS.get(str(name))
        argument = known["lr_scheduler_type"]
        if same != argument:
            message = f"the config's scheduler is used, and --lr_scheduler_type {argument} is not"
            yield config.remark(
                "hf-scheduler",
                "error" if same else "warning",
                "scheduler.type",
                message,
                fix="take one of them out",
                source=TRAINER,
            )
    own, offloads = config.raw("optimizer") is not None, _offloads(config)
    if not own and offloads and config.get("zero_force_ds_cpu_optimizer") is not False:
        yield config.warning(
            "hf-optimizer-offload",
            "zero_optimization.offload_optimizer",
            "the Trainer's own optimizer on offloaded states: accelerate swaps AdamW for "
            "DeepSpeedCPUAdam, and DeepSpeed stops at any other",
            fix="add an optimizer section, or zero_force_ds_cpu_optimizer false",
            source="Hugging Face's DeepSpeed guide: optimizer; DeepSpeed 0.19.8, runtime/engine.py",
        )
    if own and config.raw("scheduler") is None:
        yield config.info(
            "hf-scheduler",
            "optimizer",
            "DeepSpeed's optimizer with the Trainer's scheduler: versions of transformers before "
            "4.33 stop at it",
            fix=None,
            source="Hugging Face's DeepSpeed guide: optimizer and scheduler",
        )
    elif not own and name is not None:
        yield config.info(
            "hf-scheduler",
            "scheduler",
            "DeepSpeed's scheduler with the Trainer's optimizer: works with optimizers that have "
            "both a CPU and a GPU form, not with LAMB",
            fix=None,
            source=TRAINER,
        )


def _offloads(config: LintedConfig) -> bool:
    return config.get("zero_optimization.offload_optimizer.device") in ("cpu", "nvme")


def section(config: LintedConfig) -> Iterator[Remark]:
    """accelerate, and with it the Trainer, wants the section for ZeRO."""
    if config.reader != "native" and not config.has("zero_optimization"):
        yield config.error(
            "no-zero",
            "",
            "no zero_optimization: accelerate stops with `Please specify the ZeRO optimization "
            "config in the DeepSpeed config`",
            fix='add "zero_optimization": {"stage": 2}, or stage 0 for none',
            source="accelerate 1.15, utils/dataclasses.py",
        )


def saving(config: LintedConfig) -> Iterator[Remark]:
    """--save_on_each_node overrides what the config says."""
    known, path = config.arguments, "checkpoint.use_node_local_storage"
    if known is None or config.reader != "hf":
        return
    each = known["save_on_each_node"] is True
    if each and config.raw(path) is False:
        yield config.error(
            "hf-node-local",
            path,
            "false, but --save_on_each_node sets it to true",
            fix="say the same in both",
            source=TRAINER,
        )
    elif config.raw(path) is True and not each:
        yield config.warning(
            "hf-node-local",
            path,
            "without --save_on_each_node, nodes other than the first have no trainer_state.json "
            "and keep all old checkpoints",
            fix="add --save_on_each_node",
            source="transformers 5.23, trainer.py",
        )


def inference(config: LintedConfig) -> Iterator[Remark]:
    """Evaluation alone is for stage 3, whose weights alone are divided."""
    known = config.arguments
    if known is None or config.reader != "hf" or config.stage == 3:
        return
    asked = [name for name in ("do_eval", "do_predict") if known[name] is True]
    if asked and known["do_train"] is not True and config.has("zero_optimization"):
        yield config.error(
            "hf-inference",
            "zero_optimization",
            f"--{asked[0]} without --do_train and stage {config.stage}: the Trainer stops with "
            "`ZeRO inference only makes sense with ZeRO Stage 3`",
            fix="zero_optimization.stage 3, or evaluate without DeepSpeed",
            source=TRAINER,
        )


NAMES = (
    "hf-inference",
    "hf-mismatch",
    "hf-node-local",
    "hf-optimizer-offload",
    "hf-precision",
    "hf-scheduler",
    "hf-text",
    "no-zero",
)
RULES = (matching, in_quotes, stage_in_quotes, schedulers, section, saving, inference)
