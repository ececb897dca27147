"""Texts of numbers: with nouns, as bytes, as ranges, and truncated lists."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return `1 node`, `2 nodes`, `0 nodes`; `plural` for nouns that do not just take an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def first_few(items: Sequence[str], most: int) -> list[str]:
    """Return the first `most` items, and `and 3 more` as the last one if there are more."""
    more = len(items) - most
    return [*items[:most], *([f"and {more} more"] if more > 0 else [])]


def listed(items: Sequence[str], most: int) -> str:
    """Return `a, b` or, with more than `most` items, `a, b and 3 more`."""
    more = len(items) - most
    return ", ".join(items[:most]) + (f" and {more} more" if more > 0 else "")


def number_range(numbers: Sequence[int]) -> str:
    """Return ascending numbers as `0-3` or `0,2,3`."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers))


def byte_count(size: int) -> str:
    """Return a number of bytes with its unit: `120 B`, `85.7 kB`, `1.2 GB`."""
    value, units = float(size), ["B", "kB", "MB", "GB", "TB", "PB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} B" if units[0] == "B" else f"{value:.1f} {units[0]}"
