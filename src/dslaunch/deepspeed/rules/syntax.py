"""The syntax of the config: JSON or HJSON, duplicate keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Unpack

from dslaunch.deepspeed.config_text import Loose, path_text
from dslaunch.deepspeed.linted_config import How, LintedConfig
from dslaunch.lint import Level, Remark
from dslaunch.lint.rules import rule

LOADER = "DeepSpeed 0.19.8, runtime/config.py"
STRICT = "accelerate 1.15, utils/deepspeed.py: json.load"


@rule("not-json", "error", "HJSON that only DeepSpeed itself can read", source=STRICT)
def loose(config: LintedConfig) -> Iterator[Remark]:
    """Report HJSON, which only DeepSpeed itself reads.

    One finding for all, or one for each kind if the Trainer or accelerate stops at it.
    """
    found = config.document.loose
    if not found:
        return
    if config.reader == "native":
        kinds = Counter(each.kind for each in found)
        listed = ", ".join(f"{kind} ({number})" for kind, number in kinds.items())
        message = f"HJSON: {listed}; Trainer and accelerate cannot read it, DeepSpeed can"
        fix = "no change needed if DeepSpeed itself reads the file"
        yield _loose(config, "info", found[0], message, fix=fix, source=LOADER)
        return
    for kind in dict.fromkeys(each.kind for each in found):
        same = [each for each in found if each.kind == kind]
        times = f", {len(same)} times" if len(same) > 1 else ""
        message = f"{kind}{times}: not JSON, json.load stops here"
        fix = "remove the comments" if kind == "comment" else "write JSON"
        edits = tuple(edit for each in same for edit in each.edits)
        yield _loose(config, "error", same[0], message, fix=fix, source=STRICT, edits=edits)


def _loose(
    config: LintedConfig, level: Level, found: Loose, message: str, **how: Unpack[How]
) -> Remark:
    """Return a finding about a place of the text that is not a key."""
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


@rule(
    "duplicate-key",
    "error",
    "a key that is set twice",
    source="DeepSpeed 0.19.8, runtime/config_utils.py",
)
def twice(config: LintedConfig) -> Iterator[Remark]:
    """Report keys that are set twice."""
    document = config.document
    for path, offset in document.twice:
        line, column = document.place(offset)
        if config.reader == "native":
            message = "duplicate key: DeepSpeed stops with `Duplicate keys in DeepSpeed config`"
        else:
            message = "duplicate key: json.load uses the last one and silently drops the other"
        yield Remark(
            rule="duplicate-key",
            level="error",
            file=document.file,
            line=line,
            column=column,
            path=path_text(path),
            message=message,
            fix="keep one of the two",
        )


@rule("no-object", "error", "the config is not a JSON object", source=LOADER)
def top(config: LintedConfig) -> Iterator[Remark]:
    """Report a config that is a list."""
    if not isinstance(config.document.data, dict):
        message = "expected an object, {...}, got a list: DeepSpeed stops"
        yield config.error("no-object", "", message, fix="write the settings as an object, {...}")
