"""A config with the known facts about its job: the input of the lint rules."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal, Required, TypedDict, Unpack

from msgspec import Struct

from dslaunch.deepspeed import values
from dslaunch.deepspeed.arguments import Arguments
from dslaunch.deepspeed.batch import Parallelism
from dslaunch.deepspeed.config_text import ConfigDocument, Path, path_text
from dslaunch.deepspeed.hardware import NodeHardware
from dslaunch.deepspeed.schema import Key, Table
from dslaunch.json_text import json_literal
from dslaunch.lint import Edit, Level, Remark

Reader = Literal["native", "hf", "accelerate"]
"""Passes the config to DeepSpeed: the script itself, Hugging Face's Trainer, or accelerate."""
READERS: tuple[Reader, ...] = ("native", "hf", "accelerate")

ACCELERATES_STAGE = 2
"""The stage by which accelerate replaces `auto` (1.15, DeepSpeedPlugin), also for the Trainer."""
FILLED = {f"{mode}.enabled": (mode, f"{mode}_full_eval") for mode in ("fp16", "bf16")}
"""Arguments by which the Trainer replaces `auto`: transformers 5.23, integrations/deepspeed.py."""


class How(TypedDict, total=False):
    """Optional parts of a finding."""

    fix: str | None
    source: str | None
    edits: tuple[Edit, ...]


class WithFix(How):
    """The same for an error, whose fix is required."""

    fix: Required[str]  # type: ignore[misc]  # narrower, and never written to


class LintedConfig(Struct, frozen=True, dict=True):
    """The input of the lint rules."""

    document: ConfigDocument
    table: Table
    reader: Reader = "native"
    arguments: Arguments | None = None
    """Arguments of the script; None: unknown."""
    parallelism: Parallelism | None = None
    """Parallelism of the run; None: unknown."""
    nodes: tuple[NodeHardware, ...] = ()
    parameters: float | None = None
    """Number of parameters of the model; None: unknown."""
    model_dtype: str | None = None
    """Data type in which the model was pretrained, as named by Hugging Face: bfloat16."""

    @property
    def version(self) -> str:
        """Return the DeepSpeed version of the table."""
        return f"DeepSpeed {self.table.version}"

    def raw(self, path: str) -> Any:
        """Return the written value at a path; None: not set, or null."""
        here: Any = self.document.data
        for step in path.split("."):
            here = here.get(step) if isinstance(here, dict) else None
        return here

    def has(self, path: str) -> bool:
        """Return whether a path is set."""
        return tuple(path.split(".")) in self.document.spans

    def get(self, path: str) -> Any:
        """Return the effective value, with names and defaults resolved, and its type converted.

        An `auto` that a framework replaces is the value of the argument, None if it is unknown; an
        `auto` that DeepSpeed drops is the default. A value that DeepSpeed rejects is the default.
        """
        key = self.table.keys.get(path)
        found = next((p for p in self._spellings(path) if self.has(p)), None)
        value = self.raw(found) if found else None
        if found is None or key is None:
            return key.default if key and found is None else value
        if value == "auto" and key.type != "str":
            return self._filled(path) if self.fills(key) else key.default
        if key.checked and not key.is_section:
            return values.coerced(key, value) if values.taken(key, value) else key.default
        return value

    def _filled(self, path: str) -> Any:
        """Return the Trainer's value for `auto`, for the keys that rules use; None: unknown."""
        names = FILLED.get(path)
        if names is None or self.reader != "hf" or self.arguments is None:
            return None
        return any(self.arguments[name] is True for name in names)

    def on(self, path: str) -> bool:
        """Return whether a switch is on."""
        return self.get(path) is True

    @cached_property
    def stage(self) -> int:
        """Return the ZeRO stage; 0: off."""
        zero = self.raw("zero_optimization")
        if isinstance(zero, bool):
            return int(zero)
        if self.reader != "native" and self.raw("zero_optimization.stage") == "auto":
            return ACCELERATES_STAGE
        stage = self.get("zero_optimization.stage")
        return int(stage) if stage is not None else 0

    def fills(self, key: Key) -> bool:
        """Return whether a framework replaces `auto` at this key."""
        name = {"hf": "hf_trainer", "accelerate": "accelerate"}.get(self.reader)
        return name in key.auto

    def _spellings(self, path: str) -> tuple[str, ...]:
        others = (k.path for k in self.table.keys.values() if k.alias_of == path)
        old = "bfloat16" + path.removeprefix("bf16") if path.startswith("bf16.") else None
        return (path, *others, *([old] if old and self.raw("bf16") is None else []))

    def walk(self) -> Iterator[tuple[Path, Any, Key | None]]:
        """Yield all keys of the config from the top, with their table entries; unknown sections are
        not entered."""
        if isinstance(self.document.data, dict):
            yield from self._walk((), self.document.data)

    def _walk(self, path: Path, value: Any) -> Iterator[tuple[Path, Any, Key | None]]:
        steps = value if isinstance(value, dict) else range(len(value))
        for step in steps:
            here = (*path, step)
            key = self.table.find(here)
            inner = value[step]
            if isinstance(step, str):
                yield here, inner, key
            # a section in the table that is not a key has names that the user chooses
            named = self.table.general(here) is not None
            unread = here == ("bfloat16",) and self.raw("bf16") is not None
            if isinstance(inner, dict | list) and named and not unread:
                yield from self._walk(here, inner)

    def error(self, rule: str, path: str | Path, message: str, **how: Unpack[WithFix]) -> Remark:
        """Return a finding about a setting that fails, or has another effect than it seems."""
        return self.remark(rule, "error", path, message, **how)

    def warning(self, rule: str, path: str | Path, message: str, **how: Unpack[How]) -> Remark:
        """Return a finding about a setting that is probably not intended."""
        return self.remark(rule, "warning", path, message, **how)

    def info(self, rule: str, path: str | Path, message: str, **how: Unpack[How]) -> Remark:
        """Return a finding for information."""
        return self.remark(rule, "info", path, message, **how)

    def remark(
        self,
        rule: str,
        level: Level,
        path: str | Path,
        message: str,
        *,
        fix: str | None = None,
        source: str | None = None,
        edits: tuple[Edit, ...] = (),
    ) -> Remark:
        """Return a finding about a key, or about its value if the rule is about values."""
        steps: Path = tuple(path.split(".")) if isinstance(path, str) and path else ()
        steps = path if isinstance(path, tuple) else steps
        line, column = self.document.place(self.document.span(steps).key)
        file = self.document.file
        return Remark(
            rule=rule,
            level=level,
            file=file,
            line=line,
            column=column,
            path=path_text(steps),
            message=message,
            fix=fix,
            source=source,
            edits=edits,
        )

    def rename(self, path: Path, name: str) -> tuple[Edit, ...]:
        """Return the edit that renames a key; none if the new name is already set."""
        if (*path[:-1], name) in self.document.spans:
            return ()
        span = self.document.span(path)
        return (Edit(span.key, span.key_end, json_literal(name)),)

    def rewrite(self, path: Path, value: Any) -> tuple[Edit, ...]:
        """Return the edit that changes the value of a key."""
        span = self.document.span(path)
        return (Edit(span.start, span.end, json_literal(value)),)

    def lift(self, path: Path) -> tuple[Edit, ...]:
        """Return the edit that moves a key from its section to the top level, after that section.

        None if the name is already set there, or if the end of the key is ambiguous, for example
        with a comment beside it.
        """
        text, section = self.document.text, self.document.span(path[:-1])
        cut = self._cut(path)
        if cut is None or len(path) != 2 or path[1:] in self.document.spans:
            return ()
        line = _line_start(text, section.key)
        new = f",\n{line}{json_literal(path[-1])}: {self._shifted(path, line)}"
        return (Edit(cut[0], section.end, text[cut[1] : section.end] + new),)

    def _cut(self, path: Path) -> tuple[int, int] | None:
        """Return the range to remove for a key, including its comma; None: ambiguous."""
        text, span = self.document.text, self.document.span(path)
        beside = [s for p, s in self.document.spans.items() if p[:-1] == path[:-1] and p != path]
        before = max((s.end for s in beside if s.end <= span.key), default=None)
        after = min((s.key for s in beside if s.key >= span.end), default=None)
        if before is not None:
            return (before, span.end) if text[before : span.key].strip() == "," else None
        if after is not None:
            return (span.key, after) if text[span.end : after].strip() == "," else None
        return (span.key, span.end) if text[span.end :].lstrip().startswith("}") else None

    def _shifted(self, path: Path, line: str) -> str:
        """Return a value as written, with its lines indented for another depth."""
        text, span = self.document.text, self.document.span(path)
        whole = textwrap.dedent(_line_start(text, span.key) + text[span.start : span.end])
        return textwrap.indent(whole, line).strip()


def _line_start(text: str, offset: int) -> str:
    """Return the indentation before an offset; empty if other text precedes it on the line."""
    line = text[text.rfind("\n", 0, offset) + 1 : offset]
    return "" if line.strip() else line
