"""Lint a DeepSpeed config: what DeepSpeed would ignore, coerce or stop at, before it is started."""

from __future__ import annotations

from collections.abc import Iterable

from dslaunch.deepspeed import text as reading
from dslaunch.deepspeed.rules import RULES
from dslaunch.deepspeed.subject import Reader, Subject
from dslaunch.errors import ConfigError
from dslaunch.lint import Remark, in_order


def lint(subject: Subject) -> tuple[Remark, ...]:
    """All that the rules have to say, by place in the text."""
    return in_order(dict.fromkeys(remark for rule in RULES for remark in rule(subject)))


def unreadable(error: ConfigError) -> tuple[Remark, ...]:
    """A text that nobody can read, as remarks."""
    return tuple(
        Remark(
            "syntax", "error", p.file, p.line, p.column, p.path, p.message,
            "neither JSON nor HJSON; nothing else was looked at", "DeepSpeed reads HJSON",
        )
        for p in error.problems
    )  # fmt: skip


def guess_reader(document: reading.Document, words: Iterable[str] = ()) -> Reader:
    """Who hands a config to DeepSpeed, where nobody says: Hugging Face where `auto` is in it or
    the script's arguments are its; else the script itself."""
    from dslaunch.deepspeed.arguments import DEFAULTS, read

    named = set(read(list(words)).given) & (set(DEFAULTS) - {"gradient_accumulation_steps"})
    return "hf" if named or _has_auto(document.data) else "native"


def _has_auto(value: object) -> bool:
    """`auto` where the key's own default is not that."""
    if isinstance(value, dict):
        return any(_has_auto(v) for k, v in value.items() if k not in OWN_AUTO)
    return value == "auto"


OWN_AUTO = ("pipeline", "zenflow", "expert_parallel", "data_types")
"""Sections in which `auto` is a value of DeepSpeed's own."""
