"""What a reader of a user's text has to say about it: one value for DeepSpeed configs and sbatch
scripts alike, so that they are shown, counted and handed to other tools in one way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "info"]
ORDER: tuple[Level, ...] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement that mends a text for certain: characters `start` to `end` become `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing to say about a text. Lines and columns count from 1; 0 means the whole file."""

    rule: str
    """Its name for machines, stable over releases, such as `unknown-key`."""
    level: Level
    """`error`: it fails, or does something else than it says; `warning`: likely not what is meant;
    `info`: worth knowing."""
    file: str
    line: int
    column: int
    path: str
    """Where in the data, as `zero_optimization.stage`; empty where a text has no such places."""
    message: str
    """What was found and what comes of it: lower case, no full stop."""
    fix: str | None = None
    """What to do."""
    source: str | None = None
    """Where the rule is from: project, file or issue, version."""
    edits: tuple[Edit, ...] = ()
    """What `--fix` does; empty: nothing that is certain."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return ": ".join(part for part in (place, self.level, self.path, self.message) if part)


def in_order(remarks: Iterable[Remark]) -> tuple[Remark, ...]:
    """By place in the text; at one place the worst first."""
    return tuple(sorted(remarks, key=lambda r: (r.file, r.line, r.column, ORDER.index(r.level))))


def fails(remarks: Iterable[Remark], *, strict: bool = False) -> bool:
    """Whether a check with these remarks has failed: at an error, and if strict at a warning."""
    failing = ("error", "warning") if strict else ("error",)
    return any(remark.level in failing for remark in remarks)


def mended(text: str, remarks: Iterable[Remark]) -> str:
    """The text with all edits made; of edits that overlap, the first in the text."""
    edits = sorted(
        {edit for r in remarks for edit in r.edits}, key=lambda e: (e.start, e.end, e.text)
    )
    parts, at = [], 0
    for edit in edits:
        if edit.start >= at:
            parts += [text[at : edit.start], edit.text]
            at = edit.end
    return "".join([*parts, text[at:]])
