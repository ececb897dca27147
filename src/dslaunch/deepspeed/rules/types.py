"""Values of a wrong type or outside the choices: rejected, converted, or silently misread."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from dslaunch.deepspeed import batch, values
from dslaunch.deepspeed.config_text import Path
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.deepspeed.rules.auto import is_misspelt
from dslaunch.deepspeed.schema import Key
from dslaunch.json_text import json_literal
from dslaunch.lint import Edit, Remark
from dslaunch.lint.rules import rule
from dslaunch.terminal import cut
from dslaunch.texts import closest

BATCH = (batch.TRAIN, batch.MICRO, batch.STEPS)
LEAVES = values.LEAVES
CHECKED = "pydantic (DeepSpeed, runtime/config_utils.py)"
TRIED = "tested with the DeepSpeed package"
MEANT = {
    ("loss_scale", "dynamic"): "write 0 for the dynamic loss scale",
    ("loss_scale", "static"): "write the static loss scale, for example 1024",
    **dict.fromkeys(
        (("device", "gpu"), ("device", "cuda"), ("device", "false")),
        'write "none" to keep it on the GPU, without offloading',
    ),
    ("device", "disk"): 'write "nvme", and set nvme_path',
    ("device", "ssd"): 'write "nvme", and set nvme_path',
}
"""Advice for values that do not resemble what is meant."""
SWITCHED = (
    "fp16",
    "bf16",
    "amp",
    "torch_autocast",
    "flops_profiler",
    "tensorboard",
    "wandb",
    "csv_monitor",
    "comet",
    "comms_logger",
    "autotuning",
    "elasticity",
    "hybrid_engine",
)
"""Sections with an `enabled` key."""


@rule("wrong-value", "error", "a value that DeepSpeed rejects", source=CHECKED)
@rule(
    "unchecked-type",
    "error",
    "a value of the wrong type that DeepSpeed does not check",
    source=TRIED,
)
@rule("missing-key", "error", "a section without a key that it needs", source=TRIED)
@rule("wrong-type", "error", "a value of the wrong type at which DeepSpeed stops", source=TRIED)
@rule("unchecked-choice", "error", "an unknown value that DeepSpeed does not check", source=TRIED)
@rule("coerced-value", "info", "a value that DeepSpeed converts to another type", source=CHECKED)
def types(config: LintedConfig) -> Iterator[Remark]:
    """Compare every value with the type, bounds and choices of its key."""
    for path, value, key in config.walk():
        if key is None or key.type == "removed" or key.path in BATCH:
            continue
        if value == "auto" and not values.refused(key, value):
            continue  # checked by the rules of `auto`
        if is_misspelt(value) and "auto" not in map(str, key.choices):
            continue  # also checked by the rules of `auto`
        if _elsewhere(config, path, value, key):
            continue
        if value == "auto" and config.fills(key):
            continue
        if isinstance(value, dict) and (missing := [n for n in key.requires if n not in value]):
            message = f"{missing[0]} is missing: DeepSpeed stops with a KeyError"
            yield config.error("missing-key", path, message, fix=f"set {missing[0]}")
        elif key.checked:
            yield from _checked(config, path, value, key)
        else:
            yield from _unchecked(config, path, value, key)


def _elsewhere(config: LintedConfig, path: Path, value: Any, key: Key) -> bool:
    """Return whether a value of the wrong type is valid here, or checked by another rule."""
    if path == ("zero_optimization",) and isinstance(value, bool):
        return True  # the old form, checked by the rules of deprecated keys
    if key.path == "steps_per_print" and value in (math.inf, -math.inf):
        return True  # never printed; accelerate itself writes this value
    # lists of values to try, read only by `deepspeed --autotuning`
    tuned = config.raw("autotuning.enabled") is True
    return tuned and isinstance(value, list) and "list" not in key.type


def _checked(config: LintedConfig, path: Path, value: Any, key: Key) -> Iterator[Remark]:
    if not values.taken(key, value) or _refused_by_hand(key, value):
        message = f"expected {expected(key)}, got {shown(value)}: DeepSpeed stops"
        edits = _certain(config, path, value, key)
        fix = repair(key, value)
        yield config.error("wrong-value", path, message, fix=fix, source=CHECKED, edits=edits)
    elif not values.fits(key, value) and not (key.is_section or key.path.startswith(LEAVES)):
        made = values.coerced(key, value)
        message = f"{shown(value)} is converted to {json_literal(made)}"
        yield config.info(
            "coerced-value",
            path,
            message,
            fix=f"write {json_literal(made)}",
            edits=config.rewrite(path, made),
        )


def _refused_by_hand(key: Key, value: Any) -> bool:
    """Return whether a validator rejects a value (0.19.8, runtime/precision_config.py)."""
    if key.path.startswith("zero_optimization.zenflow.") and key.types == ("str", "int"):
        return isinstance(value, str)
    if key.path == "fp16.loss_scale":
        return isinstance(value, bool) or float(value) < 0
    return key.path in ("fp16.loss_scale_window", "fp16.min_loss_scale") and isinstance(value, bool)


def _certain(config: LintedConfig, path: Path, value: Any, key: Key) -> tuple[Edit, ...]:
    """Return the edit for a number in quotes."""
    if not isinstance(value, str) or "int" not in key.types:
        return ()
    try:
        number = float(value)
    except ValueError:
        return ()
    whole = number.is_integer() and values.taken(key, number)
    return config.rewrite(path, int(number)) if whole else ()


def _unchecked(config: LintedConfig, path: Path, value: Any, key: Key) -> Iterator[Remark]:
    wild = key.path.count("<") or key.path.count("[")
    if not wild and values.refused(key, value):
        message = f"expected {expected(key)}, got {shown(value)}: DeepSpeed stops"
        yield config.error("wrong-type", path, message, fix=repair(key, value))
    elif not values.fits(key, value) and not (value is None and key.default is None):
        yield config.error(
            "unchecked-type",
            path,
            f"expected {expected(key)}, got {shown(value)}, unchecked: {_consequence(key, value)}",
            fix=repair(key, value),
            source=TRIED,
            edits=_unquoted(config, path, value, key),
        )
    elif not values.allowed(key, value):
        message = f"expected {expected(key)}, got {shown(value)}"
        yield config.error("unchecked-choice", path, message, fix=repair(key, value))


def _consequence(key: Key, value: Any) -> str:
    """Return the effect of a value of the wrong type that is not checked."""
    if "bool" in key.types:
        return f"it counts as {json_literal(bool(value))}"
    return "DeepSpeed fails later, or uses it in another way"


def repair(key: Key, value: Any) -> str:
    """Return what to write instead of a wrong value."""
    meant = MEANT.get((key.name, str(value).lower()))
    if meant:
        return meant
    if isinstance(value, str) and (plain := _plain(key, value)) is not None:
        return f"write {json_literal(plain)}, without quotes"
    if key.is_section:
        return _section(key, value)
    if key.choices and not any(str(choice).startswith("<") for choice in key.choices):
        similar = closest(str(value).lower(), map(str, key.choices))
        choices = " or ".join(json_literal(choice) for choice in key.choices)
        return f"write {json_literal(similar)}" if similar else f"write {choices}"
    default = "" if key.default is None else f", or remove the key (default: {shown(key.default)})"
    return f"write {expected(key)}{default}"


def _plain(key: Key, text: str) -> Any:
    """Return the number or boolean in quotes if it has the key's type, else None."""
    word = text.strip().rstrip(",").lower()
    if word in ("true", "false") and "bool" in key.types:
        return word == "true"
    try:
        number = float(word)
    except ValueError:
        return None
    if "int" in key.types and number.is_integer():
        number = int(number)
    fitting = isinstance(number, int) or "float" in key.types
    return number if fitting and values.taken(key, number) else None


def _section(key: Key, value: Any) -> str:
    """Return what to write where a section is needed."""
    name = key.name
    if isinstance(value, bool) and name in SWITCHED:
        return f'write {{"enabled": {json_literal(value)}}}'
    if name == "zero_optimization":
        stage = 2 if value is None else value
        return f'write {{"stage": {json_literal(stage)}}}'
    if name in ("offload_optimizer", "offload_param") and isinstance(value, str | bool):
        device = value
        if isinstance(value, bool):
            device = "cpu" if value else "none"
        return f'write {{"device": {json_literal(device)}}}'
    if name in ("optimizer", "scheduler") and isinstance(value, str):
        return f'write {{"type": {json_literal(value)}, "params": {{}}}}'
    return "write an object, {...}, or remove the key"


def _unquoted(config: LintedConfig, path: Path, value: Any, key: Key) -> tuple[Edit, ...]:
    if "bool" in key.types and isinstance(value, str) and value.lower() in ("true", "false"):
        return config.rewrite(path, value.lower() == "true")
    return ()


def expected(key: Key) -> str:
    """Return what a key accepts, in words."""
    if key.choices and "list" not in key.type:
        return "one of " + ", ".join(str(choice) for choice in key.choices)
    names = {
        "int": "an integer",
        "float": "a number",
        "bool": "true or false",
        "str": "a string",
        "object": "an object",
        "null": "null",
        "path": "a path",
        "any": "any value",
        "python": "no value: only Python code can set it",
    }
    words = [names.get(kind, f"a {kind}") for kind in key.types]
    bounds = values.bounds_text(key)
    return " or ".join(words) + (f", {bounds}" if bounds else "")


def shown(value: Any) -> str:
    """Return a value for messages, as JSON of few characters."""
    return cut(json_literal(value, ascii_only=False), 37)
