"""What the text is like before it means anything: JSON or only HJSON, keys that are there twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Unpack

from dslaunch.deepspeed.config_text import Loose, path_text
from dslaunch.deepspeed.linted_config import How, LintedConfig
from dslaunch.lint import Level, Remark

LOADER = "DeepSpeed 0.19.8, runtime/config.py"
STRICT = "accelerate 1.15, utils/deepspeed.py: json.load"


def loose(config: LintedConfig) -> Iterator[Remark]:
    """Say where the text is HJSON, which only DeepSpeed itself reads: a remark for all, or for each
    kind where it stops somebody."""
    found = config.document.loose
    if not found:
        return
    if config.reader == "native":
        kinds = Counter(each.kind for each in found)
        listed = ", ".join(f"{kind} ({number})" for kind, number in kinds.items())
        message = f"HJSON: {listed}; DeepSpeed reads it, Hugging Face and accelerate do not"
        fix = "nothing, while DeepSpeed itself reads the file"
        yield _loose(config, "info", found[0], message, fix=fix, source=LOADER)
        return
    for kind in dict.fromkeys(each.kind for each in found):
        same = [each for each in found if each.kind == kind]
        times = f", {len(same)} times" if len(same) > 1 else ""
        message = f"{kind}{times}: not JSON, and `json.load` stops here"
        fix = "take comments out" if kind == "comment" else "write JSON"
        edits = tuple(edit for each in same for edit in each.edits)
        yield _loose(config, "error", same[0], message, fix=fix, source=STRICT, edits=edits)


def _loose(
    config: LintedConfig, level: Level, found: Loose, message: str, **how: Unpack[How]
) -> Remark:
    """Something to say about a place of the text that is no key."""
    line, column = config.document.place(found.offset)
    return Remark(
        rule="not-json",
        level=level,
        file=config.document.file,
        line=line,
        column=column,
        path="",
        message=message,
        **how,
    )


def twice(config: LintedConfig) -> Iterator[Remark]:
    """Say which keys are there twice."""
    document = config.document
    for path, offset in document.twice:
        line, column = document.place(offset)
        if config.reader == "native":
            message = "is there twice: DeepSpeed stops with `Duplicate keys in DeepSpeed config`"
        else:
            message = "is there twice: `json.load` takes the last one and drops the other unsaid"
        yield Remark(
            rule="duplicate-key",
            level="error",
            file=document.file,
            line=line,
            column=column,
            path=path_text(path),
            message=message,
            fix="keep one of them",
            source="DeepSpeed 0.19.8, runtime/config_utils.py",
        )


def top(config: LintedConfig) -> Iterator[Remark]:
    """A list is no config."""
    if not isinstance(config.document.data, dict):
        message = "expected an object of settings, found a list: DeepSpeed stops"
        yield config.error(
            "no-object", "", message, fix="write {...} around the settings", source=LOADER
        )


NAMES = ("duplicate-key", "no-object", "not-json")
RULES = (loose, twice, top)
