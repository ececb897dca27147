"""Findings in a user's text: one value for DeepSpeed configs and sbatch scripts. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

Level = Literal["error", "warning", "info"]
ORDER: tuple[Level, ...] = ("error", "warning", "info")


class Edit(Struct, frozen=True):
    """A certain correction: characters `start` to `end` are replaced by `text`."""

    start: int
    end: int
    text: str


class Remark(Struct, frozen=True):
    """One finding in a text. Lines and columns count from 1; 0 means the whole file."""

    rule: str
    """Its name for machines, stable over releases, such as `unknown-key`."""
    level: Level
    """`error`: fails, or is silently misread; `warning`: probably a mistake; `info`: note."""
    file: str
    line: int
    column: int
    path: str
    """The path in the data, as `zero_optimization.stage`; empty for texts without paths."""
    message: str
    """What was found and what it causes: lower case, no full stop."""
    fix: str | None = None
    """What to write instead."""
    source: str | None = None
    """The source of the rule: project, file or issue, version."""
    edits: tuple[Edit, ...] = ()
    """The changes of `--fix`; empty: none is certain."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return ": ".join(part for part in (place, self.level, self.path, self.message) if part)


def in_order(remarks: Iterable[Remark]) -> tuple[Remark, ...]:
    """Return the findings by position; at one position, the most severe first."""
    return tuple(sorted(remarks, key=lambda r: (r.file, r.line, r.column, ORDER.index(r.level))))


def fails(remarks: Iterable[Remark], *, strict: bool = False) -> bool:
    """Return whether the findings fail a check: errors do, and with `strict` warnings."""
    failing = ("error", "warning") if strict else ("error",)
    return any(remark.level in failing for remark in remarks)


def fixed_text(text: str, remarks: Iterable[Remark]) -> str:
    """Return the text with all edits applied; of overlapping edits, the first one."""
    edits = sorted(
        {edit for r in remarks for edit in r.edits}, key=lambda e: (e.start, e.end, e.text)
    )
    parts, at = [], 0
    for edit in edits:
        if edit.start >= at:
            parts += [text[at : edit.start], edit.text]
            at = edit.end
    return "".join([*parts, text[at:]])
