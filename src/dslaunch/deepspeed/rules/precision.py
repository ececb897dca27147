"""fp16, bf16 and what goes with them."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.lint import Remark

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


def both(config: LintedConfig) -> Iterator[Remark]:
    """Only one of the two can be on."""
    if config.on("fp16.enabled") and config.on("bf16.enabled"):
        yield config.error(
            "both-precisions",
            "bf16.enabled" if config.has("bf16.enabled") else "bf16",
            "DeepSpeed stops: `bfloat16 and fp16 modes cannot be simultaneously enabled`",
            fix="turn one of them off",
            source=CONFIG,
        )


def dynamic_scale(config: LintedConfig) -> Iterator[Remark]:
    """The dynamic loss scale needs positive numbers to work with."""
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
                "DeepSpeed stops: it must be more than 0 when the loss scale is dynamic",
                fix="take it out; the defaults are loss_scale_window 1000, min_loss_scale 1",
                source=PRECISION,
            )


def master_weights(config: LintedConfig) -> Iterator[Remark]:
    """16-bit master weights are for ZeRO."""
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
                "DeepSpeed stops: only with ZeRO stage 1, 2 or 3",
                fix="set zero_optimization.stage",
                source=CONFIG,
            )
    states, master = "bf16.bf16_optimizer_states", "bf16.bf16_master_weights_and_grads"
    if config.on(states) and not config.on(master):
        yield config.error(
            "master-weights",
            states,
            f"DeepSpeed stops: it needs {master}",
            fix=f"set {master} to true",
            source=CONFIG,
        )


def reduced_in_bf16(config: LintedConfig) -> Iterator[Remark]:
    """Gradients are summed in bf16, unless something else is said."""
    said = config.raw("communication_data_type") is not None
    if config.on("bf16.enabled") and not said and config.stage in (1, 2, 3):
        yield config.info(
            "bf16-reduction",
            "bf16.enabled",
            "gradients are reduced in bf16 and lose precision with many ranks",
            fix='set communication_data_type to "fp32" where that matters',
            source="Hugging Face's DeepSpeed guide: communication data type",
        )


def accumulated_in_bf16(config: LintedConfig) -> Iterator[Remark]:
    """Gradients of several micro-batches are added in bf16, unless something else is said."""
    steps, path = _micro_batches(config), "data_types.grad_accum_dtype"
    said = config.raw(path) is not None or path not in config.table.keys
    if config.on("bf16.enabled") and config.stage and steps > 1 and not said:
        yield config.info(
            "bf16-accumulation",
            "bf16.enabled",
            f"gradients of {steps} micro-batches are added in bf16, which loses the small ones",
            fix=f'set {path} to "fp32" where that matters; it takes 4 bytes per parameter',
            source="Hugging Face's DeepSpeed guide: bf16; DeepSpeed 0.19.8, runtime/engine.py",
        )


def _micro_batches(config: LintedConfig) -> int:
    """How many make a step; 1 where that is not known."""
    name = "gradient_accumulation_steps"
    value = config.raw(name)
    if value == "auto" and config.arguments is not None and config.reader == "hf":
        value = config.arguments[name]
    return value if isinstance(value, int) and not isinstance(value, bool) else 1


def pretrained(config: LintedConfig) -> Iterator[Remark]:
    """fp16 has a smaller range than the bf16 that many models were trained with."""
    if config.on("fp16.enabled") and config.model_dtype == "bfloat16":
        yield config.warning(
            "bf16-model",
            "fp16.enabled",
            "the model was trained in bf16, as its config.json says: in fp16 it overflows, and the "
            "loss becomes NaN",
            fix="bf16, or fp32 where the GPUs have no bf16",
            source="Hugging Face's DeepSpeed guide: NaN loss",
        )


def parameters(config: LintedConfig) -> Iterator[Remark]:
    """The type of the weights follows from the mode, and must not be said otherwise."""
    path = "data_types.param_dtype"
    said = SHORT.get(str(config.raw(path)))
    on = [mode for mode in ("fp16", "bf16") if config.get(f"{mode}.enabled") is not False]
    mode = on[0] if on else "fp32"
    known = all(config.get(f"{mode}.enabled") is not None for mode in ("fp16", "bf16"))
    if path in config.table.keys and said is not None and known and said != mode:
        yield config.error(
            "param-dtype",
            path,
            f"{said}, but the mode is {mode}: DeepSpeed stops when the engine starts",
            fix=f"turn {said} on, or take it out" if said != "fp32" else "take it out",
            source="DeepSpeed 0.19.8, runtime/engine.py",
        )


NAMES = (
    "bf16-accumulation",
    "bf16-model",
    "bf16-reduction",
    "both-precisions",
    "loss-scale",
    "master-weights",
    "param-dtype",
)
RULES = (
    parameters,
    both,
    dynamic_scale,
    master_weights,
    reduced_in_bf16,
    accumulated_in_bf16,
    pretrained,
)
