"""Deprecated keys, and keys that are set under two names."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.deepspeed.config_text import Path
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.deepspeed.schema import Key
from dslaunch.json_text import json_literal
from dslaunch.lint import Edit, Remark
from dslaunch.lint.rules import also_reports, rule

ZERO = "zero_optimization"
OFFLOAD = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_param"}
GATHER = "stage3_gather_16bit_weights_on_model_save"
SOURCE = "DeepSpeed, runtime/zero/config.py"


@rule(
    "old-and-new",
    "error",
    "a key under two of its names",
    source="DeepSpeed, runtime/config_utils.py",
)
@rule("deprecated-key", "warning", "a deprecated key", source=SOURCE)
def deprecated(config: LintedConfig) -> Iterator[Remark]:
    """Report deprecated keys with their successors, and keys under both names."""
    for path, value, key in config.walk():
        if key is None or not key.deprecated or len(path) > 2:
            continue
        new = _successor(key)
        if key.path.startswith(f"{ZERO}.") and any(config.has(n) for n in _both(key)):
            yield config.error(
                "old-and-new",
                path,
                f"deprecated name of {new}, which is also set: DeepSpeed stops",
                fix="remove it",
            )
        else:
            fix = f"use {new}" if new else None
            edits = _edits(config, path, value)
            yield config.warning("deprecated-key", path, "deprecated key", fix=fix, edits=edits)


def _successor(key: Key) -> str:
    if key.path == "bfloat16":
        return "bf16"
    if key.name == "stage3_gather_fp16_weights_on_model_save":
        return f"{ZERO}.{GATHER}"
    new = key.replaced_by or ""
    return f"{ZERO}.{new}" if new and key.path.startswith(ZERO) and "." not in new else new


def _both(key: Key) -> tuple[str, ...]:
    """Return the paths at which DeepSpeed would store the value of the old key."""
    if key.name == "cpu_offload_use_pin_memory":
        return ()  # DeepSpeed warns and does nothing with it
    if key.name == "stage3_gather_fp16_weights_on_model_save":
        return (f"{ZERO}.{GATHER}", f"{ZERO}.gather_16bit_weights_on_model_save")
    return (_successor(key),) if _successor(key) else ()


def _edits(config: LintedConfig, path: Path, value: object) -> tuple[Edit, ...]:
    name = path[-1]
    if name == "bfloat16":
        return config.rename(path, "bf16")
    if name == "stage3_gather_fp16_weights_on_model_save":
        return config.rename(path, GATHER)
    if name in OFFLOAD and value is True:
        renamed = config.rename(path, OFFLOAD[str(name)])
        return (*renamed, *config.rewrite(path, {"device": "cpu"})) if renamed else ()
    return ()


@also_reports
def spelt_twice(config: LintedConfig) -> Iterator[Remark]:
    """Report keys that are set under both of their names."""
    for path, value, key in config.walk():
        other = key.alias_of if key is not None and len(path) > 1 else None
        if key and other and config.has(other) and "auto" not in (value, config.raw(other)):
            yield config.error(
                "old-and-new",
                path,
                f"another name of {key.alias_of}, which is also set: DeepSpeed stops",
                fix="keep one of them",
                source="pydantic's `populate_by_name` (DeepSpeed 0.19.8)",
            )
    if config.raw("bf16") is not None and config.raw("bfloat16") is not None:
        yield config.error(
            "ignored-key",
            "bfloat16",
            "silently ignored, because bf16 is also set",
            fix="remove it",
            source="DeepSpeed 0.19.8, runtime/precision_config.py",
        )


@also_reports
def switch(config: LintedConfig) -> Iterator[Remark]:
    """Report `zero_optimization: true`, the form before 0.3, which accelerate does not accept."""
    value = config.raw(ZERO)
    if not isinstance(value, bool):
        return
    stage = int(value)
    fix, edits = f'write {{"stage": {stage}}}', config.rewrite((ZERO,), {"stage": stage})
    if config.reader == "native":
        message = f"{json_literal(value)} is the deprecated form of stage {stage}"
        yield config.warning("deprecated-key", ZERO, message, fix=fix, edits=edits)
    else:
        message = "expected a section: accelerate stops with an AttributeError"
        source = "accelerate 1.15, utils/deepspeed.py, `find_config_node`"
        yield config.error("wrong-value", ZERO, message, fix=fix, source=source, edits=edits)
