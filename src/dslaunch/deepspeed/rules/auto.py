"""`auto`: which values somebody fills in, and which nobody does."""

from __future__ import annotations

import json
from collections.abc import Iterator

from dslaunch.deepspeed import values
from dslaunch.deepspeed.batch import MICRO, STEPS, TRAIN
from dslaunch.deepspeed.config_text import Path
from dslaunch.deepspeed.linted_config import ACCELERATES_STAGE, LintedConfig
from dslaunch.deepspeed.schema import Key
from dslaunch.lint import Remark

READERS = {"hf": "the Trainer", "accelerate": "accelerate", "native": "DeepSpeed"}
SOURCES = {
    "hf": "transformers 5.23, integrations/deepspeed.py; accelerate 1.15, utils/dataclasses.py",
    "accelerate": "accelerate 1.15, utils/dataclasses.py, `fill_match`",
    "native": "DeepSpeed 0.19.8, runtime/config_utils.py",
}


def auto(config: LintedConfig) -> Iterator[Remark]:
    """Say which `auto` stays one."""
    for path, value, key in config.walk():
        if key is not None and is_misspelt(value) and "auto" not in map(str, key.choices):
            yield _misspelt(config, path, value)
        if value != "auto" or key is None or key.type == "removed" or config.fills(key):
            continue
        if config.reader == "native":
            yield from _native(config, path, key)
        else:
            yield _nobody(config, path, key)


def is_misspelt(value: object) -> bool:
    """Whether a value is `auto` in other letters, which is a text like any other."""
    return isinstance(value, str) and value != "auto" and value.strip().lower() == "auto"


def _misspelt(config: LintedConfig, path: Path, value: str) -> Remark:
    message = f"{json.dumps(value)} is a text like any other: only `auto`, in small letters, is "
    message += "filled in or dropped"
    edits = config.rewrite(path, "auto")
    source = SOURCES[config.reader]
    return config.error(
        "misspelt-auto", path, message, fix='write "auto"', source=source, edits=edits
    )


def _native(config: LintedConfig, path: Path, key: Key) -> Iterator[Remark]:
    """Without a framework `auto` is not replaced; DeepSpeed drops it or takes it for text."""
    who = " and ".join(sorted(key.auto)).replace("hf_trainer", "Hugging Face's Trainer")
    fills = "fills" if len(key.auto) == 1 else "fill"
    fix = f"write a value; only {who} {fills} it in" if who else "write a value, or take it out"
    if key.path in (TRAIN, MICRO, STEPS):
        if config.raw("autotuning.enabled") is not True:  # the autotuner tries sizes
            message = "`auto` is not replaced here, and DeepSpeed stops with a TypeError"
            source = SOURCES["native"]
            yield config.error("auto-batch", path, message, fix=fix, source=source)
        return
    if config.raw("autotuning.enabled") is True:
        return
    if key.checked and not _own(key):
        message = f"`auto` is not replaced here: the key is dropped, so it is {_shown(key)}"
    elif values.refused(key, "auto") or _own(key) or "auto" in key.choices:
        return  # the rules of types say so, or it is a value like others
    else:
        message = "`auto` is not replaced here: it stays text and fails where it is used"
    yield config.error("auto-unresolved", path, message, fix=fix, source=SOURCES["native"])


def _nobody(config: LintedConfig, path: Path, key: Key) -> Remark:
    message = f"{READERS[config.reader]} does not fill in `auto` here and stops with a ValueError"
    fix = f"write a value; the default is {_shown(key)}"
    if _own(key):
        fix = "take it out: `auto` is DeepSpeed's default here"
    return config.error("auto-unresolved", path, message, fix=fix, source=SOURCES[config.reader])


def _own(key: Key) -> bool:
    """Whether `auto` is one of the key's own values."""
    return bool(key.default == "auto")


def _shown(key: Key) -> str:
    return json.dumps(key.default)


def stage(config: LintedConfig) -> Iterator[Remark]:
    """A stage of `auto` is 2, whatever else the section says."""
    if config.reader == "native" or config.raw("zero_optimization.stage") != "auto":
        return
    yield config.warning(
        "auto-stage",
        "zero_optimization.stage",
        f"accelerate makes stage {ACCELERATES_STAGE} of it (or ACCELERATE_DEEPSPEED_ZERO_STAGE), "
        "and is_zero3() says False: keys of stage 3 have no effect, every rank loads the whole "
        "model",
        fix="write the stage: 1, 2 or 3",
        source=SOURCES["accelerate"],
    )


NAMES = ("auto-batch", "auto-stage", "auto-unresolved", "misspelt-auto")
RULES = (auto, stage)
