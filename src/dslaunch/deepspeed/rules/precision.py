"""fp16, bf16 and related settings."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.lint import Remark
from dslaunch.lint.rules import rule

CONFIG = "DeepSpeed 0.19.8, runtime/config.py"
SHORT = {
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp32": "fp32",
    "float32": "fp32",
    "float": "fp32",
}
PRECISION = "DeepSpeed 0.19.8, runtime/precision_config.py"


@rule("both-precisions", "error", "fp16 and bf16 are both enabled", source=CONFIG)
def both(config: LintedConfig) -> Iterator[Remark]:
    """Only one of fp16 and bf16 can be enabled."""
    if config.on("fp16.enabled") and config.on("bf16.enabled"):
        yield config.error(
            "both-precisions",
            "bf16.enabled" if config.has("bf16.enabled") else "bf16",
            "fp16.enabled is also true: DeepSpeed stops with `bfloat16 and fp16 modes cannot be "
            "simultaneously enabled`",
            fix="set fp16.enabled or bf16.enabled to false",
        )


@rule("loss-scale", "error", "an invalid setting of the dynamic loss scale", source=PRECISION)
def dynamic_scale(config: LintedConfig) -> Iterator[Remark]:
    """The dynamic loss scale needs positive settings."""
    known = config.table.keys.get("fp16.loss_scale_window")
    dynamic = config.on("fp16.enabled") and config.get("fp16.loss_scale") == 0
    if not dynamic or known is None or not known.checked:
        return
    for name in ("loss_scale_window", "min_loss_scale"):
        value = config.get(f"fp16.{name}")
        if isinstance(value, int | float) and value <= 0:
            yield config.error(
                "loss-scale",
                f"fp16.{name}",
                f"{value}, expected more than 0 for the dynamic loss scale: DeepSpeed stops",
                fix="remove it (defaults: loss_scale_window 1000, min_loss_scale 1)",
            )


@rule(
    "master-weights",
    "error",
    "16-bit master weights or optimizer states without the ZeRO settings they need",
    source=CONFIG,
)
def master_weights(config: LintedConfig) -> Iterator[Remark]:
    """16-bit master weights and optimizer states need ZeRO."""
    for path in (
        "fp16.fp16_master_weights_and_grads",
        "bf16.bf16_master_weights_and_grads",
        "bf16.bf16_optimizer_states",
    ):
        known = config.table.keys.get(path)
        if known is not None and known.checked and config.on(path) and config.stage == 0:
            yield config.error(
                "master-weights",
                path,
                "needs ZeRO stage 1, 2 or 3: DeepSpeed stops",
                fix="set zero_optimization.stage to 1, 2 or 3",
            )
    states, master = "bf16.bf16_optimizer_states", "bf16.bf16_master_weights_and_grads"
    if config.on(states) and not config.on(master):
        yield config.error(
            "master-weights",
            states,
            f"needs {master}: DeepSpeed stops",
            fix=f"set {master} to true",
        )


@rule(
    "bf16-reduction",
    "info",
    "gradients are reduced in bf16",
    source="Hugging Face's DeepSpeed guide: communication data type",
)
def reduced_in_bf16(config: LintedConfig) -> Iterator[Remark]:
    """Gradients are reduced in bf16 by default."""
    said = config.raw("communication_data_type") is not None
    if config.on("bf16.enabled") and not said and config.stage in (1, 2, 3):
        yield config.info(
            "bf16-reduction",
            "bf16.enabled",
            "gradients are reduced in bf16, which loses precision with many ranks",
            fix='set communication_data_type to "fp32" if precision matters',
        )


@rule(
    "bf16-accumulation",
    "info",
    "gradients are accumulated in bf16",
    source="Hugging Face's DeepSpeed guide: bf16; DeepSpeed 0.19.8, runtime/engine.py",
)
def accumulated_in_bf16(config: LintedConfig) -> Iterator[Remark]:
    """Gradients of several micro-batches are accumulated in bf16 by default."""
    steps, path = _micro_batches(config), "data_types.grad_accum_dtype"
    said = config.raw(path) is not None or path not in config.table.keys
    if config.on("bf16.enabled") and config.stage and steps > 1 and not said:
        yield config.info(
            "bf16-accumulation",
            "bf16.enabled",
            f"gradients of {steps} micro-batches are accumulated in bf16, which loses small ones",
            fix=f'set {path} to "fp32" if precision matters (4 bytes per parameter)',
        )


def _micro_batches(config: LintedConfig) -> int:
    """Return the micro-batches per step; 1 if unknown."""
    name = "gradient_accumulation_steps"
    value = config.raw(name)
    if value == "auto" and config.arguments is not None and config.reader == "hf":
        value = config.arguments[name]
    return value if isinstance(value, int) and not isinstance(value, bool) else 1


@rule(
    "bf16-model",
    "warning",
    "fp16 training of a model that was trained in bf16",
    source="Hugging Face's DeepSpeed guide: NaN loss",
)
def pretrained(config: LintedConfig) -> Iterator[Remark]:
    """fp16 has a smaller range than bf16, in which many models were trained."""
    if config.on("fp16.enabled") and config.model_dtype == "bfloat16":
        yield config.warning(
            "bf16-model",
            "fp16.enabled",
            "config.json says that the model was trained in bf16: fp16 can overflow, and the loss "
            "becomes NaN",
            fix="use bf16, or fp32 if the GPUs have no bf16",
        )


@rule(
    "param-dtype",
    "error",
    "`param_dtype` contradicts fp16 or bf16",
    source="DeepSpeed 0.19.8, runtime/engine.py",
)
def parameters(config: LintedConfig) -> Iterator[Remark]:
    """`param_dtype` must agree with fp16 or bf16."""
    path = "data_types.param_dtype"
    said = SHORT.get(str(config.raw(path)))
    on = [mode for mode in ("fp16", "bf16") if config.get(f"{mode}.enabled") is not False]
    mode = on[0] if on else "fp32"
    known = all(config.get(f"{mode}.enabled") is not None for mode in ("fp16", "bf16"))
    if path in config.table.keys and said is not None and known and said != mode:
        yield config.error(
            "param-dtype",
            path,
            f"{said}, but training is in {mode}: DeepSpeed stops when the engine starts",
            fix=f"enable {said}, or remove it" if said != "fp32" else "remove it",
        )
