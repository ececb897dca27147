"""The three batch keys, with the world size of the run where it is known."""

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

SOURCE = "DeepSpeed 0.19.8, runtime/config.py, `_set_batch_related_parameters`"
KEYS = (TRAIN, MICRO, STEPS)
LONGEST = 18
"""Digits of a size; more are none."""


def sizes(config: LintedConfig) -> Iterator[Remark]:
    """Say what DeepSpeed says to the batch keys, and what it does not say."""
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
    """Values that are no whole numbers."""
    for name in KEYS:
        value = config.raw(name)
        if value is None or value == "auto":
            continue
        if is_misspelt(value):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            stops = not isinstance(value, bool)
            said = "DeepSpeed stops with a TypeError" if stops else f"counts as {int(value)}"
            message = f"expected a whole number, found {shown(value)}: {said}"
            text = value.strip().rstrip(",") if isinstance(value, str) else ""
            number = int(text) if text.isdecimal() and len(text) < LONGEST else None
            fix = "write a whole number" if number is None else f"write {number}, without quotes"
            edits = () if number is None else config.rewrite((name,), number)
            if stops:
                yield config.error(
                    "wrong-batch", name, message, fix=fix, source=SOURCE, edits=edits
                )
            else:
                yield config.error("unchecked-type", name, message, fix=fix, source=SOURCE)


def _elastic(config: LintedConfig) -> bool:
    """Elasticity sets the sizes itself, in the versions that have it."""
    removed = config.table.keys.get("elasticity")
    on = config.raw("elasticity.enabled") is True
    return on and removed is not None and removed.type != "removed"


def _open(config: LintedConfig) -> bool:
    """Whether a size is `auto` and what it will be is not known."""
    return any(value == "auto" or is_misspelt(value) for value in _filled(config))


def _filled(config: LintedConfig) -> tuple[Any, Any, Any]:
    """The sizes with what the Trainer fills in from its arguments, where they are known."""
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
    if error.message == batch.MISSING:
        message = f"DeepSpeed stops with `{error.message}`, unless the script adds it"
        return config.warning("batch-missing", "", message, fix=error.fix, source=SOURCE)
    if config.parallelism is None and _depends_on_world(config):
        message = f"holds for some world size other than 1; with 1: `{error.message}`"
        return config.info("batch-world", present, message, fix=_world(config), source=SOURCE)
    message = f"DeepSpeed stops with `{error.message}`"
    return config.error("batch", present, message, fix=_better(config, error.fix), source=SOURCE)


def _depends_on_world(config: LintedConfig) -> bool:
    """Whether some world size would do."""
    train, micro, steps = (config.raw(name) for name in KEYS)
    whole = [value for value in (train, micro, steps) if value is not None]
    if any(value <= 0 for value in whole) or train is None:
        return False
    return micro is None or train % (micro * (steps or 1)) == 0


def _world(config: LintedConfig) -> str:
    """For how many ranks the sizes hold."""
    train, micro, steps = (config.raw(name) for name in KEYS)
    ask = "name the cluster: --cluster, or --world N"
    if train is None or micro is None:
        return ask
    ranks = train / (micro * (steps or 1))
    each = "" if steps else ", or fewer with accumulation"
    return f"{ask}; it holds for {ranks:g} data-parallel ranks{each}"


def _better(config: LintedConfig, fallback: str) -> str:
    """Sizes near to these that would do."""
    ways = batch.ways_out(batch.given(config.document.data), int(_parallelism(config).data))
    words = [
        " and ".join(f"{name} {value}" for name, value in way.items())
        for way in {tuple(way.items()): way for way in ways}.values()
    ]
    return "; or ".join(words) or fallback


def _fractions(config: LintedConfig, result: batch.BatchSizes) -> Iterator[Remark]:
    """Sizes that DeepSpeed takes, though they are not what is meant."""
    size = _parallelism(config).data
    for name, value in zip(KEYS, (result.train, result.micro, result.steps), strict=True):
        if isinstance(value, float) and not value.is_integer():
            message = f"comes to {value:g}, no whole number, and DeepSpeed goes on: {size:g} ranks"
            fix = _better(config, "sizes that divide each other without a rest")
            yield config.error("batch-fraction", name, message, fix=fix, source=SOURCE)
    autotp = _parallelism(config).autotp
    if autotp > 1 and config.parallelism is not None:
        message = (
            f"counts the {autotp} ranks of tensor_parallel.autotp_size as data-parallel: "
            f"{result.train:g} is reported, {result.train / autotp:g} different samples are read"
        )
        yield config.warning(
            "batch-autotp", TRAIN, message, fix=None, source="DeepSpeed 0.19.8, __init__.py"
        )


NAMES = (
    "batch",
    "batch-autotp",
    "batch-fraction",
    "batch-missing",
    "batch-world",
    "unchecked-type",
    "wrong-batch",
)
RULES = (sizes,)
