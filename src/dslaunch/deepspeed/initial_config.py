"""A first DeepSpeed config: small, valid, and with a comment for every choice. Pure.

DeepSpeed reads comments, since it reads HJSON; Hugging Face's Trainer and accelerate read strict
JSON, so for them the comments are values of a key `_comment`, which DeepSpeed passes over at the
top level (0.19.8, runtime/config.py).
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, cast, get_args

from dslaunch.deepspeed.memory import Strategy
from dslaunch.errors import UsageError

Precision = Literal["bf16", "fp16", "fp32"]
For = Literal["hf", "native"]
Json = dict[str, Any]
EXAMPLES = files("dslaunch.deepspeed") / "examples"
INDEX = "index.json"
NVME_PATH = "/local_nvme"


@dataclass(frozen=True, slots=True)
class ConfigPurpose:
    """What the config is for."""

    strategy: Strategy
    precision: Precision = "bf16"
    target: For = "hf"
    checkpointing: bool = False
    nvme_path: str = NVME_PATH


def purpose(
    stage: int, offload: str, precision: str, target: str, nvme_path: str = NVME_PATH
) -> ConfigPurpose:
    """Read what a user asked for; `offload` is `none`, `cpu`, `cpu-params` or `nvme`.

    Raises UsageError for what does not exist or does not go together.
    """
    if precision not in get_args(Precision):
        raise UsageError(f"--precision: `{precision}` is none of bf16, fp16 and fp32")
    if target not in get_args(For):
        raise UsageError(f"--for: `{target}` is none of hf and native")
    strategies = {
        "none": Strategy(stage),
        "cpu": Strategy(stage, "cpu"),
        "cpu-params": Strategy(stage, "cpu", "cpu"),
        "nvme": Strategy(stage, "nvme", "nvme"),
    }
    if offload not in strategies:
        raise UsageError(f"--offload: `{offload}` is none of {', '.join(strategies)}")
    if not 0 <= stage <= 3:
        raise UsageError(f"--stage: there is no ZeRO-{stage}", hint="0, 1, 2 or 3")
    least = {"none": 0, "cpu": 1}.get(offload, 3)
    if stage < least:
        hint = "offload_param and NVMe are ignored below stage 3" if stage else None
        raise UsageError(f"--offload {offload} needs --stage {least} or more", hint=hint)
    return ConfigPurpose(
        strategies[offload], cast(Precision, precision), cast(For, target), nvme_path=nvme_path
    )


def config(purpose: ConfigPurpose) -> Json:
    """The settings."""
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
    """Why each of the settings is there, by its path."""
    said = dict(_COMMENTS)
    if purpose.target == "hf":
        said |= _HF_COMMENTS
    if purpose.precision == "fp32":
        said["fp16"] = "off, or transformers would load the model in fp16"
    said["zero_optimization.stage"] = _STAGES[purpose.strategy.stage]
    if "nvme" in (purpose.strategy.optimizer, purpose.strategy.params):
        said["zero_optimization.offload_optimizer"] = (
            "nvme_path must be a disk of each node's own, no shared directory and no tmpfs"
        )
    there = set(_paths(config(purpose)))
    return {path: text for path, text in said.items() if path in there}


_STAGES = {
    0: "0: nothing is partitioned; each GPU has the whole model, its gradients and Adam's states",
    1: "1: optimizer states are partitioned over the GPUs",
    2: "2: optimizer states and gradients are partitioned over the GPUs",
    3: "3: optimizer states, gradients and parameters are partitioned over the GPUs",
}
_COMMENTS = {
    "train_micro_batch_size_per_gpu": "samples that one GPU works on at a time; raise it until "
    "the memory is used",
    "gradient_accumulation_steps": "micro-batches per step; batch = micro-batch * this * GPUs",
    "gradient_clipping": "the largest norm of the gradients",
    "bf16": "needs Ampere or later; has the range of fp32, so no loss scaling",
    "fp16": "for GPUs before Ampere; the loss is scaled dynamically. Models that were trained "
    "in bf16 may overflow",
    "optimizer": "lr is yours to choose",
    "zero_optimization.offload_optimizer": "states and step of the optimizer are the CPU's",
    "zero_optimization.offload_param": "parameters are on the GPU only while they are used",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "save whole weights, not "
    "placeholders; gathers the model on the first rank",
    "activation_checkpointing": "the model must call deepspeed.checkpointing.checkpoint",
}
_HF_COMMENTS = {
    "train_batch_size": "auto: from --per_device_train_batch_size, --gradient_accumulation_steps "
    "and the number of GPUs",
    "train_micro_batch_size_per_gpu": "auto: from --per_device_train_batch_size",
    "gradient_accumulation_steps": "auto: from --gradient_accumulation_steps",
    "gradient_clipping": "auto: from --max_grad_norm",
    "optimizer": "offloaded states need an optimizer of DeepSpeed's own; auto: from the "
    "Trainer's arguments",
    "bf16": "pass --bf16 to the Trainer too; needs Ampere or later",
    "fp16": "pass --fp16 to the Trainer too; for GPUs before Ampere",
}


def _paths(value: Json, above: str = "") -> list[str]:
    here = []
    for key, below in value.items():
        here.append(f"{above}{key}")
        if isinstance(below, dict):
            here += _paths(below, f"{above}{key}.")
    return here


def text(purpose: ConfigPurpose) -> str:
    """The config as a file: strict JSON for Hugging Face, JSON with `//` comments for DeepSpeed."""
    settings, said = config(purpose), comments(purpose)
    if purpose.target == "hf":
        return json.dumps({"_comment": said, **settings}, indent=2) + "\n"
    return "\n".join(["{", *_lines(settings, said, "", "  "), "}"]) + "\n"


def _lines(settings: Json, said: dict[str, str], above: str, indent: str) -> list[str]:
    lines = []
    for number, (key, value) in enumerate(settings.items(), 1):
        path, comma = f"{above}{key}", "," if number < len(settings) else ""
        if path in said:
            lines.append(f"{indent}// {said[path]}")
        if isinstance(value, dict):
            inner = _lines(value, said, f"{path}.", indent + "  ")
            lines += [f"{indent}{json.dumps(key)}: {{", *inner, f"{indent}}}{comma}"]
        else:
            lines.append(f"{indent}{json.dumps(key)}: {json.dumps(value)}{comma}")
    return lines


@dataclass(frozen=True, slots=True)
class Example:
    """A complete config of the library."""

    name: str
    description: str
    target: For
    text: str


def library(grep: str = "") -> tuple[Example, ...]:
    """The examples with `grep` in their name, description or text, in any case."""
    index = json.loads((EXAMPLES / INDEX).read_text("utf-8"))
    found = [
        Example(name, entry["description"], entry["for"], _example(name))
        for name, entry in index.items()
    ]
    word = grep.casefold()
    return tuple(e for e in found if word in f"{e.name}\n{e.description}\n{e.text}".casefold())


def example(name: str) -> Example:
    """The example of that name. Raises UsageError."""
    every = {each.name: each for each in library()}
    if name not in every:
        close = difflib.get_close_matches(name, every, 1)
        hint = f"did you mean `{close[0]}`?" if close else f"there are: {', '.join(every)}"
        raise UsageError(f"no example is named `{name}`", hint=hint)
    return every[name]


def _example(name: str) -> str:
    return (EXAMPLES / f"{name}.json").read_text("utf-8")
