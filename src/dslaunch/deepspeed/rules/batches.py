"""The three batch sizes, with the world size of the run if it is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dslaunch.deepspeed import batch
from dslaunch.deepspeed.arguments import Arguments
from dslaunch.deepspeed.batch import MICRO, STEPS, TRAIN, BatchError, Parallelism
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.deepspeed.rules.auto import is_misspelt
from dslaunch.deepspeed.rules.types import shown
from dslaunch.lint import Remark
from dslaunch.lint.rules import rule

SOURCE = "DeepSpeed 0.19.8, runtime/config.py, `_set_batch_related_parameters`"
KEYS = (TRAIN, MICRO, STEPS)
LONGEST = 18
"""The most digits of a batch size."""


@rule(
    "batch-autotp",
    "warning",
    "`train_batch_size` counts AutoTP ranks as data-parallel ranks",
    source="DeepSpeed 0.19.8, __init__.py",
)
@rule("batch-fraction", "error", "a batch size that is not an integer", source=SOURCE)
@rule("batch", "error", "batch sizes that contradict each other or the world size", source=SOURCE)
@rule("batch-missing", "warning", "no batch size is set", source=SOURCE)
@rule("batch-world", "info", "batch sizes that fit only some world sizes", source=SOURCE)
@rule("wrong-batch", "error", "a batch size of the wrong type", source=SOURCE)
def sizes(config: LintedConfig) -> Iterator[Remark]:
    """Report batch sizes at which DeepSpeed stops, and those that it silently misuses."""
    if not isinstance(config.document.data, dict):
        return
    wrong = list(_wrong(config))
    yield from wrong
    if any(remark.rule == "wrong-batch" for remark in wrong) or _elastic(config) or _open(config):
        return
    train, micro, steps = _filled(config)
    result = batch.resolve(train, micro, steps, _parallelism(config).data)
    if isinstance(result, BatchError):
        yield _failed(config, result)
    else:
        yield from _fractions(config, result)


def _wrong(config: LintedConfig) -> Iterator[Remark]:
    """Report values that are not integers."""
    for name in KEYS:
        value = config.raw(name)
        if value is None or value == "auto":
            continue
        if is_misspelt(value):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            stops = not isinstance(value, bool)
            said = "DeepSpeed stops with a TypeError" if stops else f"it counts as {int(value)}"
            message = f"expected an integer, got {shown(value)}: {said}"
            text = value.strip().rstrip(",") if isinstance(value, str) else ""
            number = int(text) if text.isdecimal() and len(text) < LONGEST else None
            fix = "write an integer" if number is None else f"write {number}, without quotes"
            edits = () if number is None else config.rewrite((name,), number)
            if stops:
                yield config.error("wrong-batch", name, message, fix=fix, edits=edits)
            else:
                yield config.error("unchecked-type", name, message, fix=fix)


def _elastic(config: LintedConfig) -> bool:
    """Return whether elasticity sets the batch sizes, in versions that have it."""
    removed = config.table.keys.get("elasticity")
    on = config.raw("elasticity.enabled") is True
    return on and removed is not None and removed.type != "removed"


def _open(config: LintedConfig) -> bool:
    """Return whether a batch size is `auto` and unknown."""
    return any(value == "auto" or is_misspelt(value) for value in _filled(config))


def _filled(config: LintedConfig) -> tuple[Any, Any, Any]:
    """Return the batch sizes, with `auto` replaced by the Trainer's arguments if known."""
    train, micro, steps = (config.raw(name) for name in KEYS)
    known = config.arguments
    if config.reader == "native" or known is None:
        return train, micro, steps
    if config.reader == "accelerate":
        return train, micro, steps
    world = _parallelism(config).world
    micro = known["per_device_train_batch_size"] if micro == "auto" else micro
    steps = known["gradient_accumulation_steps"] if steps == "auto" else steps
    if train == "auto" and config.parallelism is not None:
        train = world
        train *= _whole(known, "per_device_train_batch_size")
        train *= _whole(known, "gradient_accumulation_steps")
    return train, micro, steps


def _whole(known: Arguments, name: str) -> int:
    value = known[name]
    return value if isinstance(value, int) else 1


def _parallelism(config: LintedConfig) -> Parallelism:
    return config.parallelism or Parallelism(1)


def _failed(config: LintedConfig, error: BatchError) -> Remark | Any:
    present = next((name for name in KEYS if config.raw(name) is not None), "")
    if error.missing:
        message = f"DeepSpeed stops with `{error.message}`, unless the script sets it"
        return config.warning("batch-missing", "", message, fix=error.fix)
    if config.parallelism is None and _depends_on_world(config):
        message = f"invalid for 1 rank, valid for other world sizes; with 1 rank: `{error.message}`"
        return config.info("batch-world", present, message, fix=_world(config))
    message = f"DeepSpeed stops with `{error.message}`"
    return config.error("batch", present, message, fix=_better(config, error.fix))


def _depends_on_world(config: LintedConfig) -> bool:
    """Return whether the batch sizes are valid for any world size."""
    train, micro, steps = (config.raw(name) for name in KEYS)
    whole = [value for value in (train, micro, steps) if value is not None]
    if any(value <= 0 for value in whole) or train is None:
        return False
    return micro is None or train % (micro * (steps or 1)) == 0


def _world(config: LintedConfig) -> str:
    """Return the world size for which the batch sizes are valid, as advice."""
    train, micro, steps = (config.raw(name) for name in KEYS)
    ask = "add --cluster FILE or --world-size N"
    if train is None or micro is None:
        return ask
    ranks = train / (micro * (steps or 1))
    each = "" if steps else ", or fewer with gradient accumulation"
    return f"{ask}; valid for {ranks:g} data-parallel ranks{each}"


def _better(config: LintedConfig, fallback: str) -> str:
    """Return similar batch sizes that are valid."""
    ways = batch.valid_changes(batch.given(config.document.data), int(_parallelism(config).data))
    words = [
        " and ".join(f"{name} {value}" for name, value in way.items())
        for way in {tuple(way.items()): way for way in ways}.values()
    ]
    return "; or ".join(words) or fallback


def _fractions(config: LintedConfig, result: batch.BatchSizes) -> Iterator[Remark]:
    """Report batch sizes that DeepSpeed accepts although they are probably not intended."""
    size = _parallelism(config).data
    for name, value in zip(KEYS, (result.train, result.micro, result.steps), strict=True):
        if isinstance(value, float) and not value.is_integer():
            message = f"{value:g} with {size:g} ranks, not an integer; DeepSpeed does not stop"
            fix = _better(config, "choose sizes that divide each other without a remainder")
            yield config.error("batch-fraction", name, message, fix=fix)
    autotp = _parallelism(config).autotp
    if autotp > 1 and config.parallelism is not None:
        message = (
            f"counts the {autotp} ranks of tensor_parallel.autotp_size as data-parallel ranks: "
            f"DeepSpeed reports {result.train:g} samples per step, but reads "
            f"{result.train / autotp:g} different ones"
        )
        yield config.warning("batch-autotp", TRAIN, message, fix=None)
