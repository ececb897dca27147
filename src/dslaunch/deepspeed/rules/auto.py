"""`auto`: values that a framework replaces, and values that stay `auto`."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.deepspeed import values
from dslaunch.deepspeed.batch import MICRO, STEPS, TRAIN
from dslaunch.deepspeed.config_text import Path
from dslaunch.deepspeed.linted_config import ACCELERATES_STAGE, LintedConfig
from dslaunch.deepspeed.schema import Key
from dslaunch.json_text import json_literal
from dslaunch.lint import Remark
from dslaunch.lint.rules import rule

READERS = {"hf": "the Trainer", "accelerate": "accelerate", "native": "DeepSpeed"}
SOURCES = {
    "hf": "transformers 5.23, integrations/deepspeed.py; accelerate 1.15, utils/dataclasses.py",
    "accelerate": "accelerate 1.15, utils/dataclasses.py, `fill_match`",
    "native": "DeepSpeed 0.19.8, runtime/config_utils.py",
}


@rule(
    "auto-unresolved",
    "error",
    '`"auto"` that neither the Trainer nor accelerate replaces',
    source=SOURCES["native"],
)
@rule(
    "auto-batch",
    "error",
    'a batch size of `"auto"` without Trainer or accelerate',
    source=SOURCES["native"],
)
@rule(
    "misspelt-auto", "error", '`"auto"` in capital letters or with spaces', source=SOURCES["native"]
)
def auto(config: LintedConfig) -> Iterator[Remark]:
    """Report each `auto` that is not replaced."""
    for path, value, key in config.walk():
        if key is not None and is_misspelt(value) and "auto" not in map(str, key.choices):
            yield _misspelt(config, path, value)
        if value != "auto" or key is None or key.type == "removed" or config.fills(key):
            continue
        if config.reader == "native":
            yield from _native(config, path, key)
        else:
            yield _not_replaced(config, path, key)


def is_misspelt(value: object) -> bool:
    """Return whether a value is `auto` in other letters or with spaces."""
    return isinstance(value, str) and value != "auto" and value.strip().lower() == "auto"


def _misspelt(config: LintedConfig, path: Path, value: str) -> Remark:
    message = f"{json_literal(value)} is not replaced: only `auto` in lower case without spaces is"
    edits = config.rewrite(path, "auto")
    source = SOURCES[config.reader]
    return config.error(
        "misspelt-auto", path, message, fix='write "auto"', source=source, edits=edits
    )


def _native(config: LintedConfig, path: Path, key: Key) -> Iterator[Remark]:
    """Without a framework `auto` stays: DeepSpeed drops it or reads it as a string."""
    who = " and ".join(sorted(key.auto)).replace("hf_trainer", "Hugging Face's Trainer")
    replaces = "replaces" if len(key.auto) == 1 else "replace"
    fix = f"write a value; only {who} {replaces} `auto`" if who else "write a value, or remove it"
    if key.path in (TRAIN, MICRO, STEPS):
        if config.raw("autotuning.enabled") is not True:  # the autotuner tries sizes
            message = "`auto` is not replaced: DeepSpeed stops with a TypeError"
            source = SOURCES["native"]
            yield config.error("auto-batch", path, message, fix=fix, source=source)
        return
    if config.raw("autotuning.enabled") is True:
        return
    if key.checked and not _own(key):
        message = f"`auto` is not replaced: DeepSpeed drops the key and uses {_shown(key)}"
    elif values.refused(key, "auto") or _own(key) or "auto" in key.choices:
        return  # checked by the rules of types, or a valid value
    else:
        message = "`auto` is not replaced: DeepSpeed fails later, when it uses the string"
    yield config.error("auto-unresolved", path, message, fix=fix)


def _not_replaced(config: LintedConfig, path: Path, key: Key) -> Remark:
    message = f"{READERS[config.reader]} does not replace `auto` here: it stops with a ValueError"
    fix = f"write a value (default: {_shown(key)})"
    if _own(key):
        fix = "remove it: `auto` is DeepSpeed's default for this key"
    return config.error("auto-unresolved", path, message, fix=fix, source=SOURCES[config.reader])


def _own(key: Key) -> bool:
    """Return whether `auto` is a value of the key itself."""
    return bool(key.default == "auto")


def _shown(key: Key) -> str:
    return json_literal(key.default)


@rule("auto-stage", "warning", 'a ZeRO stage of `"auto"`', source=SOURCES["accelerate"])
def stage(config: LintedConfig) -> Iterator[Remark]:
    """A stage of `auto` becomes 2, even if the section has settings of stage 3."""
    if config.reader == "native" or config.raw("zero_optimization.stage") != "auto":
        return
    yield config.warning(
        "auto-stage",
        "zero_optimization.stage",
        f"accelerate replaces it by stage {ACCELERATES_STAGE} (or ACCELERATE_DEEPSPEED_ZERO_STAGE) "
        "and is_zero3() returns False: settings of stage 3 have no effect, and every rank loads "
        "the whole model",
        fix="write 1, 2 or 3",
    )
