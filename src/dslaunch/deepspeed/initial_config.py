"""A first DeepSpeed config: small, valid, and with a comment for every choice. Pure.

DeepSpeed parses HJSON, which has comments. Hugging Face's Trainer and accelerate parse strict JSON,
so for them the comments are values of a key `_comment`, which DeepSpeed ignores at the top level
(0.19.8, runtime/config.py).
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, Literal, cast, get_args

from msgspec import Struct

from dslaunch.deepspeed.memory import Strategy
from dslaunch.errors import ErrorCode, UsageError
from dslaunch.json_text import json_literal, json_text
from dslaunch.registry import unknown_name

Precision = Literal["bf16", "fp16", "fp32"]
For = Literal["hf", "native"]
Json = dict[str, Any]
EXAMPLES = files("dslaunch.deepspeed") / "examples"
INDEX = "index.json"
NVME_PATH = "/local_nvme"


class ConfigPurpose(Struct, frozen=True):
    """The purpose of the config."""

    strategy: Strategy
    precision: Precision = "bf16"
    target: For = "hf"
    checkpointing: bool = False
    nvme_path: str = NVME_PATH


def purpose(
    stage: int, offload: str, precision: str, target: str, nvme_path: str = NVME_PATH
) -> ConfigPurpose:
    """Return the purpose from options; `offload` is `none`, `cpu`, `cpu-params` or `nvme`.

    Raises UsageError for unknown values and for conflicts.
    """
    if precision not in get_args(Precision):
        raise _unknown("--precision", precision, get_args(Precision))
    if target not in get_args(For):
        raise _unknown("--for", target, get_args(For))
    strategies = {
        "none": Strategy(stage),
        "cpu": Strategy(stage, "cpu"),
        "cpu-params": Strategy(stage, "cpu", "cpu"),
        "nvme": Strategy(stage, "nvme", "nvme"),
    }
    if offload not in strategies:
        raise _unknown("--offload", offload, tuple(strategies))
    if not 0 <= stage <= 3:
        raise _unknown("--stage", str(stage), ("0", "1", "2", "3"))
    least = {"none": 0, "cpu": 1}.get(offload, 3)
    if stage < least:
        raise UsageError.coded(
            ErrorCode.OFFLOAD_NEEDS_STAGE,
            offload=offload,
            least=least,
            stage=stage,
            fitting="cpu" if stage else "none",
        )
    return ConfigPurpose(
        strategies[offload], cast(Precision, precision), cast(For, target), nvme_path=nvme_path
    )


def _unknown(option: str, value: str, choices: tuple[str, ...]) -> UsageError:
    return UsageError.coded(ErrorCode.UNKNOWN_CHOICE, option=option, value=value, choices=choices)


def config(purpose: ConfigPurpose) -> Json:
    """Return the settings of the config."""
    auto = purpose.target == "hf"
    batch: Json = {
        "train_micro_batch_size_per_gpu": "auto" if auto else 1,
        "gradient_accumulation_steps": "auto" if auto else 1,
        "gradient_clipping": "auto" if auto else 1.0,
    }
    if auto:
        batch = {"train_batch_size": "auto", **batch}
    return {
        **batch,
        **_precision(purpose),
        **_optimizer(purpose),
        "zero_optimization": _zero(purpose),
        **(
            {"activation_checkpointing": _CHECKPOINTING}
            if purpose.checkpointing and not auto
            else {}
        ),
    }


_CHECKPOINTING: Json = {"partition_activations": False, "contiguous_memory_optimization": False}


def _precision(purpose: ConfigPurpose) -> Json:
    if purpose.precision != "fp32":
        return {purpose.precision: {"enabled": True}}
    # without it transformers loads models in fp16 (5.23.0, integrations/deepspeed.py)
    return {"fp16": {"enabled": False}} if purpose.target == "hf" else {}


def _optimizer(purpose: ConfigPurpose) -> Json:
    if purpose.target == "native":
        params: Json = {"lr": 1e-5, "weight_decay": 0.01}
    elif purpose.strategy.optimizer != "gpu":
        params = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")
    else:
        return {}
    return {"optimizer": {"type": "AdamW", "params": params}}


def _zero(purpose: ConfigPurpose) -> Json:
    strategy = purpose.strategy
    zero: Json = {"stage": strategy.stage}
    for name, device in (("optimizer", strategy.optimizer), ("param", strategy.params)):
        if device != "gpu":
            place: Json = {"device": device, "pin_memory": True}
            if device == "nvme":
                place = {"device": device, "nvme_path": purpose.nvme_path, "pin_memory": True}
            zero[f"offload_{name}"] = place
    if strategy.stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return zero


def comments(purpose: ConfigPurpose) -> dict[str, str]:
    """Return a comment for each setting, by its path."""
    said = dict(_COMMENTS)
    if purpose.target == "hf":
        said |= _HF_COMMENTS
    if purpose.precision == "fp32":
        said["fp16"] = "disabled, otherwise transformers would load the model in fp16"
    said["zero_optimization.stage"] = _STAGES[purpose.strategy.stage]
    if "nvme" in (purpose.strategy.optimizer, purpose.strategy.params):
        said["zero_optimization.offload_optimizer"] = (
            "nvme_path must be on a local disk of each node, not shared storage or tmpfs"
        )
    there = set(_paths(config(purpose)))
    return {path: text for path, text in said.items() if path in there}


_STAGES = {
    0: "0: no partitioning; each GPU has the whole model, its gradients and optimizer states",
    1: "1: partition optimizer states across the GPUs",
    2: "2: partition optimizer states and gradients across the GPUs",
    3: "3: partition optimizer states, gradients and parameters across the GPUs",
}
_COMMENTS = {
    "train_micro_batch_size_per_gpu": "samples per GPU and micro-batch; increase it until the GPU "
    "memory is used",
    "gradient_accumulation_steps": "micro-batches per step; batch = micro-batch * this * GPUs",
    "gradient_clipping": "maximum norm of the gradients",
    "bf16": "needs Ampere or later; range of fp32, so no loss scaling",
    "fp16": "for GPUs before Ampere; dynamic loss scaling. Models that were trained in bf16 may "
    "overflow",
    "optimizer": "choose lr for your training",
    "zero_optimization.offload_optimizer": "optimizer states and step on CPU",
    "zero_optimization.offload_param": "copy parameters to the GPU only while they are used",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "save complete "
    "weights; gathers the model on rank 0",
    "activation_checkpointing": "the model must call deepspeed.checkpointing.checkpoint",
}
_HF_COMMENTS = {
    "train_batch_size": "auto: from --per_device_train_batch_size, --gradient_accumulation_steps "
    "and the number of GPUs",
    "train_micro_batch_size_per_gpu": "auto: from --per_device_train_batch_size",
    "gradient_accumulation_steps": "auto: from --gradient_accumulation_steps",
    "gradient_clipping": "auto: from --max_grad_norm",
    "optimizer": "offloading needs an optimizer of DeepSpeed; auto: from the arguments of the "
    "Trainer",
    "bf16": "also pass --bf16 to the Trainer; needs Ampere or later",
    "fp16": "also pass --fp16 to the Trainer; for GPUs before Ampere",
}


def _paths(value: Json, above: str = "") -> list[str]:
    here = []
    for key, below in value.items():
        here.append(f"{above}{key}")
        if isinstance(below, dict):
            here += _paths(below, f"{above}{key}.")
    return here


def text(purpose: ConfigPurpose) -> str:
    """Return the config as a file: strict JSON for Hugging Face, JSON with `//` comments for
    DeepSpeed."""
    settings, said = config(purpose), comments(purpose)
    if purpose.target == "hf":
        return json_text({"_comment": said, **settings}, indent=2) + "\n"
    return "\n".join(["{", *_lines(settings, said, "", "  "), "}"]) + "\n"


def _lines(settings: Json, said: dict[str, str], above: str, indent: str) -> list[str]:
    lines = []
    for number, (key, value) in enumerate(settings.items(), 1):
        path, comma = f"{above}{key}", "," if number < len(settings) else ""
        if path in said:
            lines.append(f"{indent}// {said[path]}")
        if isinstance(value, dict):
            inner = _lines(value, said, f"{path}.", indent + "  ")
            lines += [f"{indent}{json_literal(key)}: {{", *inner, f"{indent}}}{comma}"]
        else:
            lines.append(f"{indent}{json_literal(key)}: {json_literal(value)}{comma}")
    return lines


class Example(Struct, frozen=True):
    """A complete config of the library."""

    name: str
    description: str
    target: For
    text: str


def library(grep: str = "") -> tuple[Example, ...]:
    """Return the examples with `grep` in their name, description or text, in any case."""
    index = json.loads((EXAMPLES / INDEX).read_text("utf-8"))
    found = [
        Example(name, entry["description"], entry["for"], _example(name))
        for name, entry in index.items()
    ]
    word = grep.casefold()
    return tuple(e for e in found if word in f"{e.name}\n{e.description}\n{e.text}".casefold())


def example(name: str) -> Example:
    """Return the example of that name. Raises UsageError."""
    every = {each.name: each for each in library()}
    if name not in every:
        raise unknown_name("example", name, tuple(every))
    return every[name]


def _example(name: str) -> str:
    return (EXAMPLES / f"{name}.json").read_text("utf-8")
