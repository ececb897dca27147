"""`auto`: which values somebody fills in, and which nobody does."""

from __future__ import annotations

import json
from collections.abc import Iterator

from dslaunch.deepspeed import values
from dslaunch.deepspeed.batch import MICRO, STEPS, TRAIN
from dslaunch.deepspeed.schema import Key
from dslaunch.deepspeed.subject import Subject
from dslaunch.deepspeed.text import Path
from dslaunch.lint import Remark

NAMES = {"hf": "the Trainer", "accelerate": "accelerate", "native": "DeepSpeed"}
SOURCES = {
    "hf": "transformers 5.23, integrations/deepspeed.py; accelerate 1.15, utils/dataclasses.py",
    "accelerate": "accelerate 1.15, utils/dataclasses.py, `fill_match`",
    "native": "DeepSpeed 0.19.8, runtime/config_utils.py",
}


def auto(subject: Subject) -> Iterator[Remark]:
    """Say which `auto` stays one."""
    for path, value, key in subject.walk():
        if value != "auto" or key is None or key.type == "removed" or subject.fills(key):
            continue
        if subject.reader == "native":
            yield from _native(subject, path, key)
        else:
            yield _nobody(subject, path, key)


def _native(subject: Subject, path: Path, key: Key) -> Iterator[Remark]:
    """Without a framework nobody fills in anything; DeepSpeed drops it or takes it for text."""
    who = " and ".join(sorted(key.auto)).replace("hf_trainer", "Hugging Face's Trainer")
    fix = (
        f"write a value; only {who} fill{'s' if len(key.auto) == 1 else ''} it in" if who else None
    )
    rule = "auto-unresolved"
    if key.path in (TRAIN, MICRO, STEPS):
        rule = "auto-batch"
        message = "nobody fills in `auto` here, and DeepSpeed stops with a TypeError"
    elif key.checked and not _own(key):
        message = f"nobody fills in `auto` here: the key is dropped, so it is {_shown(key)}"
    elif values.refused(key, "auto") or _own(key) or "auto" in key.choices:
        return  # the rules of types say so, or it is a value like others
    else:
        message = "nobody fills in `auto` here: it stays text and fails where it is used"
    yield subject.remark(rule, "error", path, message, fix, SOURCES["native"])


def _nobody(subject: Subject, path: Path, key: Key) -> Remark:
    message = f"{NAMES[subject.reader]} does not fill in `auto` here and stops with a ValueError"
    fix = f"write a value; the default is {_shown(key)}" if not _own(key) else (
        "take it out: `auto` is DeepSpeed's default here"
    )  # fmt: skip
    return subject.remark("auto-unresolved", "error", path, message, fix, SOURCES[subject.reader])


def _own(key: Key) -> bool:
    """Whether `auto` is one of the key's own values."""
    return bool(key.default == "auto")


def _shown(key: Key) -> str:
    return json.dumps(key.default)


RULES = (auto,)
