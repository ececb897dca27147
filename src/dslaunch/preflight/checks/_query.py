"""The tables of `nvidia-smi --query-gpu`, read by the names of their fields."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain

from msgspec import Struct

from dslaunch.preflight.check import UnansweredError

MOST_LINES = 10_000
LONGEST_LINE = 16 * 1024
LONGEST_NAME = 100
_HEAD = re.compile(r"^index\s*,")
_NUMBER = re.compile(r"(-?\d{1,15}(?:\.\d{1,15})?)(?:\s+\S+)?")
_MASK = re.compile(r"0[xX][0-9a-fA-F]{1,16}")
_NONE = frozenset(
    ("", "n/a", "[n/a]", "[not supported]", "[requested functionality has been deprecated]")
)


class NvidiaGpu(Struct, frozen=True):
    """One GPU as reported by the query."""

    index: int
    fields: Mapping[str, str]

    def text(self, name: str) -> str | None:
        """A field; None: this GPU or driver has none. Raises UnansweredError."""
        value = self.fields.get(name, "")
        if value.lower() in _NONE:
            return None
        if value.startswith("["):
            raise UnansweredError(f"GPU {self.index}: nvidia-smi reports {value} for {name}")
        return value

    def word(self, name: str, *words: str) -> str | None:
        """A field that is one of these words. Raises UnansweredError."""
        value = self.text(name)
        if value is not None and value not in words:
            raise UnansweredError(f"GPU {self.index}: {name} is {value[:40]!r}")
        return value

    def number(self, name: str) -> float | None:
        """A field that is a number. Raises UnansweredError."""
        value = self.text(name)
        found = _NUMBER.fullmatch(value or "")
        if value is not None and found is None:
            raise UnansweredError(f"GPU {self.index}: {name} is {value[:40]!r}, not a number")
        return float(found[1]) if found else None

    def on(self, name: str) -> bool | None:
        """A field that is `Enabled` or `Disabled`, `Yes` or `No`. Raises UnansweredError."""
        value = self.word(name, "Enabled", "Disabled", "Yes", "No")
        return None if value is None else value in ("Enabled", "Yes")

    def hexadecimal(self, name: str) -> int | None:
        """A field that is a mask of bits. Raises UnansweredError."""
        value = self.text(name)
        if value is not None and not _MASK.fullmatch(value):
            raise UnansweredError(f"GPU {self.index}: {name} is {value[:40]!r}, not a bit mask")
        return int(value, 16) if value else None

    @property
    def name(self) -> str:
        """The vendor's name of the GPU; `GPU` if nvidia-smi does not report it."""
        return self.fields.get("name", "")[:LONGEST_NAME] or "GPU"


class Tables(Struct, frozen=True):
    """What a node's query printed."""

    gpus: tuple[NvidiaGpu, ...]
    """One row per GPU, of all tables."""
    damage: str | None
    """What of the tables cannot be believed; None: all can."""


Column = tuple[str | None, ...]
"""A field of each GPU; None: this one has none."""
Columns = Mapping[str, Column]


def columns(gpus: tuple[NvidiaGpu, ...]) -> Columns:
    """Return the fields of all GPUs by name."""
    rows = [gpu.fields for gpu in gpus]
    titles = list(dict.fromkeys(chain.from_iterable(rows)))
    if all(list(row) == titles for row in rows):  # a third of the time
        return dict(zip(titles, zip(*(row.values() for row in rows), strict=True), strict=False))
    return {title: tuple(row.get(title) for row in rows) for title in titles}


def read(text: str) -> Tables:
    """Parse one or more tables, each with its head.

    A cell that is lost must not pass for one without fault: every line below a head is a row, all
    tables are of the same GPUs, and the last line has its end.
    """
    fields: dict[int, dict[str, str]] = {}
    tables: list[set[int]] = []
    damage: str | None = None
    for head, cells in _cells(text):
        if cells == head:
            tables.append(set())
        elif _is_row(head, cells):
            index = int(cells[0])
            tables[-1].add(index)
            fields.setdefault(index, {}).update(zip(head, cells, strict=True))
        elif damage is None:
            damage = ", ".join(cells)
    if damage is None and any(table != tables[0] for table in tables):
        damage = "tables of different GPUs"
    if damage is None and not text.endswith("\n"):
        damage = "last line is cut off"
    return Tables(tuple(NvidiaGpu(index, of) for index, of in sorted(fields.items())), damage)


def _without_unit(title: str) -> str:
    """Return `power.draw` of `power.draw [W]`."""
    return title.partition("[")[0].rstrip() if title.endswith("]") else title


def _cells(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """The lines of tables as cells, with the head above; nvidia-smi's own words are left out."""
    head: list[str] = []
    lines = [line for line in text.splitlines() if line and not line.isspace()]
    if len(lines) > MOST_LINES:
        yield head, [f"more than {MOST_LINES} lines"]
        return
    for whole in lines:
        line = whole[:LONGEST_LINE]  # one that is cut has not as many cells as the head
        if _HEAD.match(line):
            head = cells = _head(line)
        else:
            cells = _split(line)
        if head and any(cells) and not line.startswith(('Field "', "WARNING")):
            yield head, cells


@lru_cache(maxsize=64)
def _head(line: str) -> list[str]:
    """Return the titles of a table; most nodes have the same."""
    return [_without_unit(title) for title in _split(line)]


def _split(line: str) -> list[str]:
    """Return the cells of a line."""
    if '"' not in line:  # a tenth of the time
        return [cell.strip() for cell in line.split(",")]
    return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]


def _is_row(head: list[str], cells: list[str]) -> bool:
    index = cells[0]
    return len(cells) == len(head) and index.isascii() and index.isdecimal() and len(index) < 5
