"""What the text is like before it means anything: JSON or only HJSON, keys that are there twice."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.deepspeed.subject import Subject
from dslaunch.deepspeed.text import path_text
from dslaunch.lint import Level, Remark

LOADER = "DeepSpeed 0.19.8, runtime/config.py"
STRICT = "accelerate 1.15, utils/deepspeed.py: json.load"


def loose(subject: Subject) -> Iterator[Remark]:
    """Say where the text is HJSON, which only DeepSpeed itself reads."""
    document = subject.document
    for found in document.loose:
        line, column = document.place(found.offset)
        if subject.reader == "native":
            message = f"{found.kind}: DeepSpeed reads it (HJSON), JSON has no such thing"
            fix = None
        else:
            message = f"{found.kind}: not JSON, and `json.load` stops here"
            fix = "take it out" if found.kind == "comment" else "write JSON"
        level: Level = "info" if subject.reader == "native" else "error"
        source = LOADER if subject.reader == "native" else STRICT
        edits = found.edits if subject.reader != "native" else ()
        yield Remark(
            "not-json", level, document.file, line, column, "", message, fix, source, edits
        )


def twice(subject: Subject) -> Iterator[Remark]:
    """Say which keys are there twice."""
    document = subject.document
    for path, offset in document.twice:
        line, column = document.place(offset)
        if subject.reader == "native":
            message = "is there twice: DeepSpeed stops with `Duplicate keys in DeepSpeed config`"
        else:
            message = "is there twice: `json.load` takes the last one and drops the other unsaid"
        yield Remark(
            "duplicate-key", "error", document.file, line, column, path_text(path), message,
            "keep one of them", "DeepSpeed 0.19.8, runtime/config_utils.py",
        )  # fmt: skip


def top(subject: Subject) -> Iterator[Remark]:
    """A list is no config."""
    if not isinstance(subject.document.data, dict):
        message = "expected an object of settings, found a list: DeepSpeed stops"
        yield subject.remark("no-object", "error", "", message, None, LOADER)


RULES = (loose, twice, top)
