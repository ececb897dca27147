"""The tables that nccl-tests print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BAD = re.compile(r"^# Out of bounds values\s*:\s*(\d{1,18})", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Run:
    """What a program of nccl-tests measured."""

    busbw: float
    """The highest bus bandwidth of all sizes and both places, bytes per second. The printed
    average is over all sizes, small ones too, and says little: 68 GB/s of a run that reaches
    235."""
    size: int
    """Of which size, in bytes."""
    wrong: int
    """Values that were not what they must be."""


def read(text: str) -> Run | None:
    """Read what a program printed, of any age: with and without the column `root`, with `error` or
    `#wrong`, and with words of NCCL between the rows. None: there is no figure in it, which is
    never a bandwidth of 0."""
    rows = [(busbw, size) for size, cells in _rows(text) for busbw in cells]
    if not rows:
        return None
    busbw, size = max(rows)
    found = _BAD.search(text)
    return Run(busbw * 1e9, size, int(found[1]) if found else 0)


def _rows(text: str) -> Iterator[tuple[int, list[float]]]:
    """Size, and the cells of the columns `busbw`, of rows that carry data."""
    places: list[int] = []
    width = 0
    for line in text.splitlines():
        cells = line.split()
        if cells[:2] == ["#", "size"]:
            titles = cells[1:]
            width, places = len(titles), [at for at, t in enumerate(titles) if t == "busbw"]
        elif len(cells) == width and places and re.fullmatch("0*[1-9][0-9]{0,17}", cells[0]):
            numbers = [cells[at] for at in places]
            if all(re.fullmatch(r"\d{1,9}(\.\d{1,9})?", number) for number in numbers):
                yield int(cells[0]), [float(number) for number in numbers]
