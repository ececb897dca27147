"""A config with all that is known around it, as the rules of the lint see it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Required, TypedDict, Unpack

from dslaunch.deepspeed import values
from dslaunch.deepspeed.arguments import Arguments
from dslaunch.deepspeed.batch import Parallelism
from dslaunch.deepspeed.config_text import ConfigDocument, Path, path_text
from dslaunch.deepspeed.hardware import NodeHardware
from dslaunch.deepspeed.schema import Key, Table
from dslaunch.lint import Edit, Level, Remark

Reader = Literal["native", "hf", "accelerate"]
"""Who hands the config to DeepSpeed: the script itself, Hugging Face's Trainer, accelerate."""
READERS: tuple[Reader, ...] = ("native", "hf", "accelerate")

ACCELERATES_STAGE = 2
"""What accelerate makes of a stage of `auto` (1.15, DeepSpeedPlugin), for the Trainer too."""
FILLED = {f"{mode}.enabled": (mode, f"{mode}_full_eval") for mode in ("fp16", "bf16")}
"""By which arguments the Trainer fills in `auto`: transformers 5.23, integrations/deepspeed.py."""


class How(TypedDict, total=False):
    """What may be added to a remark."""

    fix: str | None
    source: str | None
    edits: tuple[Edit, ...]


class WithFix(How):
    """The same for an error, which always has a way out."""

    fix: Required[str]  # type: ignore[misc]  # narrower, and never written to


@dataclass(frozen=True)
class LintedConfig:
    """What the rules look at."""

    document: ConfigDocument
    table: Table
    reader: Reader = "native"
    arguments: Arguments | None = None
    """The script's; None: not known."""
    parallelism: Parallelism | None = None
    """How many ranks there will be; None: not known."""
    nodes: tuple[NodeHardware, ...] = ()
    parameters: float | None = None
    """How many the model has; None: not known."""
    model_dtype: str | None = None
    """In which type the model was trained before, as Hugging Face names it: bfloat16."""

    @property
    def version(self) -> str:
        """The DeepSpeed that is meant."""
        return f"DeepSpeed {self.table.version}"

    def raw(self, path: str) -> Any:
        """What is written at a path; None also where nothing is."""
        here: Any = self.document.data
        for step in path.split("."):
            here = here.get(step) if isinstance(here, dict) else None
        return here

    def has(self, path: str) -> bool:
        """Whether something is written at a path."""
        return tuple(path.split(".")) in self.document.spans

    def get(self, path: str) -> Any:
        """What DeepSpeed works with: spellings and defaults resolved, and made of the right type.

        An `auto` that is filled in is what the arguments say of it, or None where that is not known
        here; one that DeepSpeed leaves out is the default. What it would refuse is the default too.
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
        """What the Trainer makes of `auto`, of what the rules ask for; None: not known."""
        names = FILLED.get(path)
        if names is None or self.reader != "hf" or self.arguments is None:
            return None
        return any(self.arguments[name] is True for name in names)

    def on(self, path: str) -> bool:
        """Whether a switch is on."""
        return self.get(path) is True

    @cached_property
    def stage(self) -> int:
        """The ZeRO stage; 0: off."""
        zero = self.raw("zero_optimization")
        if isinstance(zero, bool):
            return int(zero)
        if self.reader != "native" and self.raw("zero_optimization.stage") == "auto":
            return ACCELERATES_STAGE
        stage = self.get("zero_optimization.stage")
        return int(stage) if stage is not None else 0

    def fills(self, key: Key) -> bool:
        """Whether somebody replaces an `auto` at this key."""
        name = {"hf": "hf_trainer", "accelerate": "accelerate"}.get(self.reader)
        return name in key.auto

    def _spellings(self, path: str) -> tuple[str, ...]:
        others = (k.path for k in self.table.keys.values() if k.alias_of == path)
        old = "bfloat16" + path.removeprefix("bf16") if path.startswith("bf16.") else None
        return (path, *others, *([old] if old and self.raw("bf16") is None else []))

    def walk(self) -> Iterator[tuple[Path, Any, Key | None]]:
        """All keys of the config from the top, with what the table says; not below unknown ones."""
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
            # a place in the table that is no key is a group that the user names
            named = self.table.general(here) is not None
            unread = here == ("bfloat16",) and self.raw("bf16") is not None
            if isinstance(inner, dict | list) and named and not unread:
                yield from self._walk(here, inner)

    def error(self, rule: str, path: str | Path, message: str, **how: Unpack[WithFix]) -> Remark:
        """Something that fails, or does something else than it says."""
        return self.remark(rule, "error", path, message, **how)

    def warning(self, rule: str, path: str | Path, message: str, **how: Unpack[How]) -> Remark:
        """Something that is likely not meant."""
        return self.remark(rule, "warning", path, message, **how)

    def info(self, rule: str, path: str | Path, message: str, **how: Unpack[How]) -> Remark:
        """Something to know."""
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
        """Something to say about a key; of its value where the rule is about that."""
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
        """The edit that gives a key another name; none if that name is there already."""
        if (*path[:-1], name) in self.document.spans:
            return ()
        span = self.document.span(path)
        return (Edit(span.key, span.key_end, json.dumps(name)),)

    def rewrite(self, path: Path, value: Any) -> tuple[Edit, ...]:
        """The edit that gives a key another value."""
        span = self.document.span(path)
        return (Edit(span.start, span.end, json.dumps(value)),)

    def lift(self, path: Path) -> tuple[Edit, ...]:
        """The edit that moves a key out of its section to the top level, behind that section.

        None where the name is there already, or where it is not certain what belongs to the key,
        as with a comment beside it.
        """
        text, section = self.document.text, self.document.span(path[:-1])
        cut = self._cut(path)
        if cut is None or len(path) != 2 or path[1:] in self.document.spans:
            return ()
        line = _line_start(text, section.key)
        new = f",\n{line}{json.dumps(path[-1])}: {self._shifted(path, line)}"
        return (Edit(cut[0], section.end, text[cut[1] : section.end] + new),)

    def _cut(self, path: Path) -> tuple[int, int] | None:
        """What to take out with a key, its comma included; None: that is not certain."""
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
        """A value as it is written, its lines moved to another depth."""
        text, span = self.document.text, self.document.span(path)
        whole = textwrap.dedent(_line_start(text, span.key) + text[span.start : span.end])
        return textwrap.indent(whole, line).strip()


def _line_start(text: str, offset: int) -> str:
    """The white space before what begins a line; nothing where something else begins it."""
    line = text[text.rfind("\n", 0, offset) + 1 : offset]
    return "" if line.strip() else line
